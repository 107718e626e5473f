"""The system calls, with short reads, short writes and missing features handled once.

Everything that writes goes through here, but for what `metadata` gives to files. Offsets and lengths are bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import resource
import stat
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from mpired.log import step

# Linux refuses one transfer of 2 GiB or more; smaller ones also let a signal in between.
TRANSFER = 64 << 20
_COPY_BLOCK = 1 << 20
_TO_DISK, _INTO_PLACE = "bringing results to the disk", "putting results in place"
_SYNC_FILE_RANGE_WRITE = 2
# posix_fallocate is a promise of space on these; elsewhere the C library may emulate it by writing.
_PREALLOCATING = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"})
# A file on these says where its holes are; elsewhere that was found to be wrong, and what it left out would be lost.
_TELLING_HOLES = _PREALLOCATING
_MAGICS = {0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0xF2F52010: "f2fs", 0x01021994: "tmpfs"}
# The kernel takes fine times from a clock that moves once a tick; and file systems that know even seconds only.
_TICK = 10_000_000
_EVEN_SECONDS = frozenset({"vfat", "exfat", "msdos"})
# Each call on these waits for another machine, or for another process.
_REMOTE = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "fuse"})
# A request of ioctl(2) that Python does not name.
_FS_IOC_GETVERSION = 0x80087601
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOTTY})


class blaming:  # noqa: N801 - used as a function; a generator would cost more than the calls that it guards
    """Give an `OSError` of the block the name that the user knows, not a descriptor's or a temporary one."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            error.filename = self._name


MANY = 64
"""Files of one directory for which this is listed, rather than a look taken at each."""
ANY_DEVICE = -1
"""The device of a file in a task that another machine may do: it has another number there."""


class SharedFile(Protocol):
    """A file that every process of this user can open to write ranges of it: what a task of the pool has of it."""

    def open(self) -> int: ...


class SharedPath(NamedTuple):
    """One that has a path."""

    path: str

    def open(self) -> int:
        """Open it, and return the descriptor."""
        return os.open(self.path, os.O_RDWR | os.O_CLOEXEC)


class NamedFile(NamedTuple):
    """One that has a name, by which a process that is no child of this one opens it."""

    path: str
    inode: tuple[int, int]

    @classmethod
    def of(cls, path: str, fd: int) -> NamedFile:
        """Return the file that is open here under its absolute path."""
        status = os.fstat(fd)
        return cls(path, (status.st_dev, status.st_ino))

    def open(self) -> int:
        """Open it, and return the descriptor."""
        fd = open_regular(self.path, os.O_RDWR)
        if NamedFile.of(self.path, fd) != self:
            os.close(fd)
            raise OSError(errno.ESTALE, "is not the file that this command made: something took its name")
        return fd


def absolute(path: str) -> str:
    """Return a path as processes with another working directory can use it; as it is, if ours is gone."""
    try:
        return os.path.abspath(path)
    except OSError:
        return path


def followed(path: str) -> str:
    """Return the path that a link leads to; one that is no link as it is, without a look at its directories."""
    return os.path.realpath(path) if os.path.islink(path) else path


def followed_each(paths: Sequence[str]) -> list[str]:
    """Return many paths as `followed` does; of a directory of many it is listed which names are links."""
    folders = Counter(map(folder_of, paths))
    links = {folder: _links_in(folder) for folder, number in folders.items() if number >= MANY}
    found = []
    for path in paths:
        known = links.get(folder := folder_of(path))
        found.append(path if known is not None and path[len(folder) :] not in known else followed(path))
    return found


def _links_in(folder: str) -> frozenset[str] | None:
    """Return the names of the links in a directory; None if it cannot be listed."""
    try:
        with os.scandir(folder or os.curdir) as entries:
            return frozenset(entry.name for entry in entries if entry.is_symlink())
    except OSError:
        return None


def folder_of(path: str) -> str:
    """Return the directory of a path, with its slash; "" for a name alone."""
    return path[: path.rfind(os.sep) + 1]


def real_paths(paths: Iterable[str]) -> list[str]:
    """Return many paths as `os.path.realpath` does, each directory being looked at once."""
    directories: dict[str, str] = {}
    found = []
    for path in map(followed, paths):
        directory, base = os.path.split(path)
        if base in {"", ".", ".."}:
            found.append(os.path.realpath(path))
            continue
        if directory not in directories:
            with blaming(path):  # there may be no current directory
                directories[directory] = os.path.realpath(directory)
        found.append(os.path.join(directories[directory], base))
    return found


def let_go(*fds: int) -> None:
    """Close descriptors of what needs no more care: all that matters was synced, or was never to stay."""
    for fd in fds:
        try:  # noqa: SIM105 - of each of many ranks, and `suppress` costs more than the call
            os.close(fd)
        except OSError:
            pass


def pread_into(fd: int, buffer: memoryview, offset: int) -> int:
    """Fill `buffer` from `offset` on, and return how many bytes there were before the end of the file."""
    done = 0
    while done < len(buffer):
        got = os.preadv(fd, [buffer[done : done + TRANSFER]], offset + done)
        if got == 0:
            break
        done += got
    return done


def pread_some(fd: int, nbytes: int, offset: int) -> bytes:
    """Return `nbytes` from `offset` on, or those that there are before the end of the file."""
    content = memoryview(bytearray(nbytes))
    return bytes(content[: pread_into(fd, content, offset)])


def pwrite_all(fd: int, data: memoryview | bytes, offset: int) -> None:
    """Write all of `data` at `offset`."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done : done + TRANSFER], offset + done)


def start_writing_out(fd: int, offset: int, nbytes: int) -> None:
    """Let the system begin to bring a range to the disk, so that a later `fsync` has less to wait for."""
    if nbytes:  # 0 would mean the rest of the file
        _libc().sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(nbytes), _SYNC_FILE_RANGE_WRITE)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def write_all(fd: int, data: memoryview | bytes) -> None:
    """Write all of `data` to a stream; what takes nothing at all, as /dev/full, refuses no bytes too."""
    view = memoryview(data)
    done = os.write(fd, view[:TRANSFER])
    while done < len(view):
        done += os.write(fd, view[done : done + TRANSFER])


def blocks(fd: int, start: int, stop: int) -> Iterator[memoryview]:
    """Yield the bytes from `start` to `stop`, or to the end of the file, in blocks of one reused buffer."""
    buffer = memoryview(bytearray(min(_COPY_BLOCK, max(stop - start, 0))))
    while start < stop:
        got = pread_into(fd, buffer[: stop - start], start)
        if got == 0:
            return
        yield buffer[:got]
        start += got


def copy_range(source: int, target: int, start: int, stop: int, to: int, *, zeros: bool = True) -> None:
    """Copy the bytes from `start` to `stop` of one file to the offset `to` of another.

    Without `zeros` a block that is nothing else is left out: the other file reads as zeros there already.
    """
    shift = to - start
    for block in blocks(source, start, stop):
        if zeros or bytes(block).strip(b"\0"):
            pwrite_all(target, block, start + shift)
        start += len(block)
    if start < stop:
        raise ended_early(start, stop)


def ended_early(end: int, expected: int) -> OSError:
    """Return the error for a file that has become shorter while it was copied."""
    return OSError(errno.EIO, f"ends at byte {end}, and had {expected} when it was looked at; run again")


def tells_holes(fd: int) -> bool:
    """Tell whether the file system is known to say where the holes of a file are."""
    return filesystem_type(fd) in _TELLING_HOLES


def allocate(fd: int, nbytes: int, start: int = 0) -> None:
    """Reserve `nbytes` for the file from `start` on, so that a full disk shows before any work."""
    end = max(os.fstat(fd).st_size, start + nbytes)
    if nbytes == 0 or filesystem_type(fd) not in _PREALLOCATING:
        os.ftruncate(fd, end)
        return
    try:
        os.posix_fallocate(fd, start, nbytes)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        os.ftruncate(fd, end)


def set_size(fd: int, nbytes: int) -> None:
    """Give a file a size; what is added is a hole, which reads as zeros."""
    os.ftruncate(fd, nbytes)


def filesystem_type(fd: int) -> str:
    """Return the name of the file system that `fd` lies on, "" if the system does not tell."""
    return mount_of_device(os.fstat(fd).st_dev).type or _type_by_magic(fd)


def mount_options(fd: int) -> frozenset[str]:
    """Return the options with which the file system of `fd` is mounted, none if the system does not tell."""
    return mount_of_device(os.fstat(fd).st_dev).options


def _type_by_magic(fd: int) -> str:
    """Return the same by the number that statfs(2) gives; in a chroot(2) the mounts around it are not listed."""
    status = (ctypes.c_long * 32)()
    return "" if _libc().fstatfs(fd, status) else _MAGICS.get(status[0], "")


def time_granule(status: os.stat_result) -> int:
    """Return within how many nanoseconds two changes of a file may leave the same time of modification."""
    if status.st_mtime_ns % 1_000_000_000:
        return _TICK
    return 2_000_000_000 if mount_of_device(status.st_dev).type in _EVEN_SECONDS else 1_000_000_000


def is_remote(path: str) -> bool:
    """Tell whether a file is on a file system of other machines, or of another process."""
    try:
        return mount_of_device(os.stat(path).st_dev).type.partition(".")[0] in _REMOTE
    except OSError:  # it is told where the file is opened
        return False


def preferred_nbytes(path: str) -> int:
    """Return by how many bytes a file is best read and written (`st_blksize`)."""
    try:
        return os.stat(path).st_blksize
    except OSError:  # as above
        return 0


class Mount(NamedTuple):
    """The type of a file system, and the options of its mount."""

    type: str = ""
    options: frozenset[str] = frozenset()


@functools.lru_cache(maxsize=64)
def mount_of_device(device: int) -> Mount:
    """Return how a device is mounted, what is empty if the system does not tell."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = lines("/proc/self/mountinfo")
    except OSError:
        return Mount()
    for mount in mounts:
        left, _, right = mount.partition(" - ")
        if left.split()[2] == wanted:
            kind, *_, of_all = right.split()
            return Mount(kind, frozenset((left.split()[5] + "," + of_all).split(",")))
    return Mount()


def lines(path: str) -> list[str]:
    """Return the lines of a file in /proc."""
    with open(path, errors="replace") as file:
        return file.read().splitlines()


def lock(fd: int, *, shared: bool = False) -> bool:
    """Take the write lock, or a read lock, on the open file description, without waiting; tell whether it was free.

    Locks of this kind end with the last descriptor, so a lock that can be taken has no living owner.
    They belong to the description: closing another descriptor of the file does not lose them, but a
    forked child has them too.
    """
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def generation(fd: int) -> int:
    """Return what tells a file from a later one with its inode number; 0 where that cannot be known."""
    try:
        return int(struct.unpack("q", fcntl.ioctl(fd, _FS_IOC_GETVERSION, bytes(8)))[0]) & 0xFFFFFFFF
    except OSError as error:
        if error.errno in UNSUPPORTED | {errno.EPERM, errno.EACCES}:  # a file system without it, or a sandbox
            return 0
        raise


def open_existing(path: str, name: str, *, writable: bool = True) -> int:
    """Open a regular file to look at it and, if `writable`, to change it; never through a link, never waiting."""
    with blaming(name):
        return open_regular(path, os.O_RDWR if writable else os.O_RDONLY)


def open_regular(path: str, flags: int, dirfd: int | None = None) -> int:
    """Open a regular file, which is in the directory `dirfd` if one is given; never through a link, never waiting."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK, 0o600, dir_fd=dirfd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file")
    return fd


def status_at(name: bytes | str, dirfd: int) -> os.stat_result | None:
    """Return what is of a name in a directory, None if there is nothing; a link is not followed."""
    try:
        return os.stat(name, dir_fd=dirfd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def names_in(directory: str | int) -> list[str]:
    """Return the names in a directory; what a signal interrupts here Python does not repeat."""
    while True:
        with contextlib.suppress(InterruptedError):
            return os.listdir(directory)


def open_directory(path: str | bytes, dirfd: int | None = None) -> int:
    """Open a directory, to name files in it and to sync their names; one within `dirfd` never through a link."""
    flags = os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC
    return os.open(path or b".", flags if dirfd is None else flags | os.O_NOFOLLOW, dir_fd=dirfd)


def reserve(fd: int, start: int, stop: int) -> None:
    """Reserve the space of a range of an existing file, where the file system can promise that."""
    if start < stop and filesystem_type(fd) in _PREALLOCATING:
        try:
            os.posix_fallocate(fd, start, stop - start)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise


def open_unnamed(dirfd: int) -> int | None:
    """Open a file without a name in a directory, or return None where the file system has no such thing.

    The file is gone with its last descriptor, so no crash leaves it behind.
    """
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=dirfd)
    except OSError as error:
        if error.errno in {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}:
            return None
        raise


def open_scratch(directory: str) -> int:
    """Open a file without a name in a directory, on any file system."""
    dirfd = open_directory(directory)
    try:
        fd = open_unnamed(dirfd)
        if fd is None:
            name = b".%b.mpired-tmp" % os.urandom(8).hex().encode()
            fd = open_new(name, dirfd)
            unlink(name, dirfd)
        return fd
    finally:
        let_go(dirfd)


def open_new(name: bytes | str, dirfd: int | None = None) -> int:
    """Create a file under a name that nothing has yet."""
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=dirfd)


def link(fd: int, name: bytes, dirfd: int) -> None:
    """Give an unnamed file its first name."""
    # Without src_dir_fd CPython calls link(2), which does not follow the /proc link (EXDEV).
    with step(_INTO_PLACE):
        os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=dirfd, dst_dir_fd=dirfd, follow_symlinks=True)


def linked(old: str, new: str, dirfd: int, to: int) -> bool:
    """Give a file in one directory a name in another; tell whether the file system can, there and as often."""
    try:
        os.link(old, new, src_dir_fd=dirfd, dst_dir_fd=to, follow_symlinks=False)
    except OSError as error:
        if error.errno in UNSUPPORTED | {errno.EXDEV, errno.EMLINK, errno.EPERM}:
            return False
        raise
    return True


def rename(old: bytes | str, new: bytes | str, dirfd: int, to: int | None = None) -> None:
    """Give `old` the name `new`, in the directory `to` if that is another one, replacing what has it, in one step."""
    to = dirfd if to is None else to
    inode = os.stat(old, dir_fd=dirfd, follow_symlinks=False).st_ino
    try:
        with step(_INTO_PLACE):
            os.replace(old, new, src_dir_fd=dirfd, dst_dir_fd=to)
    except OSError:
        # An NFS server may report the repetition of a rename that it had done already (rename(2), BUGS).
        with contextlib.suppress(OSError):
            if os.stat(new, dir_fd=to, follow_symlinks=False).st_ino == inode:
                return
        raise


def unlink(name: bytes | str, dirfd: int | None = None) -> None:
    """Remove a name; that it is gone already is no error."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dirfd)


def fsync(fd: int) -> None:
    """Bring a file to the disk. A failure is final: a repetition may report success for lost data."""
    with step(_TO_DISK):
        os.fsync(fd)


def fdatasync(fd: int) -> None:
    """Bring the content of a file to the disk, without times and attributes. A failure is final, as of `fsync`."""
    with step(_TO_DISK):
        os.fdatasync(fd)


def fsync_directory(dirfd: int) -> None:
    """Bring the names in a directory to the disk, where the file system can."""
    try:
        with step(_TO_DISK):
            os.fsync(dirfd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def make_directory(name: str, dirfd: int) -> None:
    """Make a directory that only this user can look into; its files get the group that the one around it gives them."""
    os.mkdir(name, 0o700, dir_fd=dirfd)


def remove_directory(name: str, dirfd: int) -> None:
    """Remove an empty directory; that it is gone already is no error."""
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=dirfd)


def symlink(target: str, name: str, dirfd: int) -> None:
    """Make a symbolic link."""
    os.symlink(target, name, dir_fd=dirfd)


def read_at_most(fd: int, limit: int) -> bytes:
    """Return the content of a file of at most `limit` bytes; of a longer one so many."""
    return pread_some(fd, min(os.fstat(fd).st_size, limit), 0)


@contextlib.contextmanager
def located(base: str, dirfd: int) -> Iterator[str]:
    """Give a path that leads to what is `base` in a directory now, whatever takes that name while the block runs."""
    fd = os.open(base, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dirfd)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        let_go(fd)


def allow_descriptors(wanted: int) -> int:
    """Let this process have `wanted` open files, as far as its limit can be raised; return how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return max(soft, 0)


def check_address_space(nbytes: int) -> None:
    """Raise `MemoryError` if a limit leaves this process less address space than `nbytes`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    if limit - used < nbytes:
        raise MemoryError
