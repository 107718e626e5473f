"""Passwords of servers: never in a URL, those of ~/.netrc for https, and none is told or sent elsewhere."""

import base64
import contextlib
import datetime as dt
import http.server
import ipaddress
import ssl
import threading

from command import refused, run
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from object_store import BYTES, CLOSED
from rows import together
from setups import repeating

from mpired.files.urls import SCHEMES

OTHERS = ("http", "s3", "gs", "az", "ftp", "HTTPS")
COMMANDS = (
    "info URL",
    "show --json URL",
    "diff URL r.npy",
    "reduce --op sum -o out.npy --skip-bad --provenance r.bin URL --type int",
    "reduce --op sum -o out.npy @list",
    "reduce --op sum -o out.npy --files-from=URL",
    "reduce --op sum -o out.npy --dry-run --json URL",
    "reduce --op sum -o URL r.bin --type int",
    "reduce --op URL -o out.npy r.bin --type int",
    "reduce --none=URL",
    "accumulate --op sum URL r.bin",
)


def test_a_password_is_refused_and_told_nowhere(tmp_path):
    """By each command with https and another scheme."""
    env = {**CLOSED, "HTTPS_PROXY": "http://someone:pass'wd@127.0.0.1:9"}
    with together(tmp_path) as case:
        for number, command in enumerate(COMMANDS):
            for scheme in ("https", OTHERS[number % len(OTHERS)]):
                with case(scheme, command) as folder:
                    url = f"{scheme}://someone:pass'wd@host/r.npy"
                    (folder / "r.bin").write_bytes(bytes(8))
                    (folder / "list").write_text(f"{url}\n")
                    words = [word.replace("URL", url) for word in command.split()]
                    done = run(*words, cwd=folder, env=env, setup=repeating(0))
                    (folder / "list").unlink()
                    assert done.status in {2, 4, 7, 9} - {9 if scheme in SCHEMES else 0}, done.err
                    assert "Traceback" not in done.err
                    told = [done.out, done.err.encode(), *(path.read_bytes() for path in folder.iterdir())]
                    assert not any(each in text for each in (b"wd@", b"pass'") for text in told)
                    if scheme in SCHEMES:
                        assert "has a user or a password before `@`" in done.err or "--none" in done.err


@contextlib.contextmanager
def secured(folder, *, to=None):
    """Serve three bytes by https to who has a password, and say what was asked; `to` is where all are sent instead."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "certificate").write_bytes(certificate.public_bytes(pem))
    kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "both").write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, kind, plain))
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers.get("Authorization"))
            self.send_response(302 if to else 206)
            heads = {"Content-Length": "3", "Content-Range": "bytes 0-2/3", "ETag": '"1"'}
            heads |= {"Last-Modified": "Wed, 25 Nov 2026 10:00:00 GMT", **({"Location": to} if to else {})}
            for head in heads.items():
                self.send_header(*head)
            self.end_headers()
            self.wfile.write(b"abc")

        def log_message(self, *_):
            """Say nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def netrc(folder, text, mode=0o600):
    (folder / ".netrc").write_text(text)
    (folder / ".netrc").chmod(mode)


def asking(folder, *words):
    """Run reduce where the home is a folder and the certificate of `secured` is trusted."""
    env = {"HOME": str(folder), "SSL_CERT_FILE": str(folder / "certificate"), "no_proxy": "127.0.0.1,localhost"}
    return run("reduce", *BYTES, "-o", "-", *words, cwd=folder, env=env, setup=repeating(0))


def test_netrc_has_the_passwords(tmp_path):
    netrc(tmp_path, "default login all password x\nmachine 127.0.0.1 login some password pass:w\u00f6rd\n")
    basic = "Basic " + base64.b64encode("some:pass:w\u00f6rd".encode()).decode()
    with secured(tmp_path) as (url, asked):
        done = asking(tmp_path, f"{url}/a", f"{url}/b?sig=x")
        assert (done.status, done.out) == (0, bytes(3)), done.err
        assert asked == [basic, basic]
        netrc(tmp_path, "machine elsewhere login some password secret\ndefault login all password x\n")
        assert asking(tmp_path, f"{url}/a").out == b"abc"
        assert asked[2:] == [None]


def test_a_netrc_that_cannot_be_used(tmp_path):
    for more, mode in (("oops", 0o600), ("", 0o644)):
        netrc(tmp_path, f"machine h login me password secret {more}\n", mode)
        done = asking(tmp_path, "https://127.0.0.1:9/a")
        reason = "is not this user's alone, or has more than entries as `machine HOST login"
        refused(done, 2, f"{tmp_path}/.netrc: {reason}")
        assert "secret" not in done.err


def test_a_redirection_gets_no_password(tmp_path):
    """Nor is a URL without TLS asked with one."""
    netrc(tmp_path, "machine 127.0.0.1 login some password secret\n")
    (tmp_path / "other").mkdir()
    with (
        secured(tmp_path / "other") as (other, theirs),
        secured(tmp_path, to=f"{other.replace('127.0.0.1', 'localhost')}/a") as (url, ours),
    ):
        certificates = b"".join((each / "certificate").read_bytes() for each in (tmp_path, tmp_path / "other"))
        (tmp_path / "certificate").write_bytes(certificates)
        assert asking(tmp_path, f"{url}/a").out == b"abc"
    assert (len(ours), theirs) == (1, [None])
