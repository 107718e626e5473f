"""System calls, with short reads, short writes and missing features of file systems.

All writes are here, except attributes and rights (`copying`). Offsets and lengths are in bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import operator
import os
import resource
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from mpired.files import mounts
from mpired.log import step

FORGET = mmap.MADV_DONTNEED  # advice for mapped pages that were read: they stay in the page cache
# Linux limits a transfer to 2 GiB. Between smaller transfers a signal can be handled.
TRANSFER = 64 << 20
_COPY_BLOCK, _SPARSE_BLOCK = 1 << 20, 64 << 10
_TO_DISK, _INTO_PLACE = "bringing results to the disk", "putting results in place"
_LIBC, _SYNC_FILE_RANGE_WRITE = ctypes.CDLL(None), 2
_FS_IOC_GETVERSION = 0x80087601  # a request of ioctl(2), without a name in Python
names_of: Callable[[os.stat_result], int] = operator.attrgetter("st_nlink")
"""The number of names (hard links) of a file, from its status."""
# Locks of the whole file (fcntl_locking(2)).
_READ_LOCK, _WRITE_LOCK, _NO_LOCK = (
    struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0) for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK)
)
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOTTY})
_ABSENT = UNSUPPORTED | {errno.ENODATA, errno.ENOENT, errno.ENOTDIR}


# A class, because a generator takes longer than the system calls in the block.
class errors_name(contextlib.AbstractContextManager["errors_name"]):  # noqa: N801 - used as a function
    """Give an `OSError` of the block the file name of the user, in place of a descriptor or temporary name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            error.filename = self._name


@contextlib.contextmanager
def undoing(undo: Callable[[], object]) -> Iterator[None]:
    """Call a function if the block fails."""
    try:
        yield
    except BaseException:
        undo()
        raise


class Closing(contextlib.AbstractContextManager[Any]):
    """Base of objects that are closed at the end of a `with` block."""

    def close(self) -> None:
        """Close the object."""

    def __exit__(self, *_: object) -> None:
        self.close()


ANY_DEVICE = -1
"""The device of a file in a task, because device numbers differ between machines."""


class SharedFile(NamedTuple):
    """An output in a task of an engine; each process of this user can open it and write ranges."""

    path: str
    inode: tuple[int, int] = (0, 0)  # device and inode number; (0, 0) for a path of a descriptor in /proc

    def __reduce__(self) -> tuple[object, ...]:
        return SharedFile, (self.path, (ANY_DEVICE, self.inode[1]))

    def open(self) -> int:
        """Open the file, and return the descriptor."""
        if not self.inode[1]:
            return os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        fd = open_regular(self.path, os.O_RDWR)
        status = os.fstat(fd)
        if status.st_ino != self.inode[1] or self.inode[0] not in {status.st_dev, ANY_DEVICE}:
            os.close(fd)
            raise OSError(errno.ESTALE, "is not the file that this command made: something took its name")
        return fd


def follow_link(path: str) -> str:
    """Return the path that a link leads to, or an unchanged path that is not a link."""
    return os.path.realpath(path) if os.path.islink(path) else path


def real_paths(paths: Iterable[str]) -> list[str]:
    """Return `os.path.realpath` of many paths; each directory is resolved once."""
    real_directory = functools.cache(os.path.realpath)
    resolved = []
    for path in map(follow_link, paths):
        directory, base = os.path.split(path)
        with errors_name(path):  # the current directory may not exist any more
            is_directory = base in {"", ".", ".."}
            resolved.append(os.path.realpath(path) if is_directory else os.path.join(real_directory(directory), base))
    return resolved


def close_quietly(*fds: int) -> None:
    """Close descriptors and ignore errors: results are already synced, and other files are temporary."""
    for fd in fds:
        try:  # noqa: SIM105 - `suppress` takes longer than the call, and there may be many ranks
            os.close(fd)
        except OSError:
            pass


def pread_into(fd: int, buffer: memoryview, offset: int) -> int:
    """Fill `buffer` from `offset` on, and return the number of bytes before the end of the file."""
    filled = 0
    while filled < len(buffer):
        nbytes = os.preadv(fd, [buffer[filled : filled + TRANSFER]], offset + filled)
        if nbytes == 0:
            break
        filled += nbytes
    return filled


def pread_some(fd: int, nbytes: int, offset: int) -> bytes:
    """Return `nbytes` from `offset` on, or fewer at the end of the file."""
    content = memoryview(bytearray(nbytes))
    return bytes(content[: pread_into(fd, content, offset)])


def map_file(fd: int) -> mmap.mmap:
    """Map the bytes of an open file into memory for reading."""
    return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)


def pwrite_all(fd: int, data: memoryview | bytes, offset: int) -> None:
    """Write all of `data` at `offset`."""
    view = memoryview(data)
    written = 0
    while written < len(view):
        written += os.pwrite(fd, view[written : written + TRANSFER], offset + written)


def start_writeback(fd: int, offset: int, nbytes: int) -> None:
    """Start the write-back of a range, so that a later `fsync` has less to wait for."""
    if nbytes:  # 0 would mean the rest of the file
        _LIBC.sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(nbytes), _SYNC_FILE_RANGE_WRITE)


def write_all(fd: int, data: memoryview | bytes) -> None:
    """Write all of `data` to a stream."""
    view = memoryview(data)
    written = os.write(fd, view[:TRANSFER])  # even of 0 bytes: /dev/full refuses them
    while written < len(view):
        written += os.write(fd, view[written : written + TRANSFER])


def blocks(fd: int, start: int, stop: int, block_nbytes: int = _COPY_BLOCK) -> Iterator[memoryview]:
    """Yield the bytes from `start` to `stop`, or to the end of the file, in blocks of one reused buffer."""
    buffer = memoryview(bytearray(min(block_nbytes, max(stop - start, 0))))
    while start < stop:
        nbytes = pread_into(fd, buffer[: stop - start], start)
        if nbytes == 0:
            return
        yield buffer[:nbytes]
        start += nbytes


def copy_range(source: int, target: int, start: int, stop: int, target_start: int, *, zeros: bool = True) -> None:
    """Copy the bytes from `start` to `stop` of `source` to the offset `target_start` of `target`."""
    # Without `zeros`, blocks of zeros are skipped, because the target already reads as zeros there.
    shift = target_start - start
    for block in blocks(source, start, stop, _COPY_BLOCK if zeros else _SPARSE_BLOCK):
        if zeros or bytes(block) != bytes(len(block)):
            pwrite_all(target, block, start + shift)
        start += len(block)
    if start < stop:
        raise OSError(errno.EIO, f"ends at byte {start}, and had {stop} when it was looked at; run again")


def allocate(fd: int, nbytes: int, start: int = 0) -> None:
    """Extend a file to `start + nbytes`, and reserve the space if possible, so that a full disk shows early."""
    try:
        if nbytes and mounts.mount_of_device(os.fstat(fd).st_dev).kind in mounts.WITH_EXTENTS:
            os.posix_fallocate(fd, start, nbytes)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    if os.fstat(fd).st_size < start + nbytes:
        os.ftruncate(fd, start + nbytes)


def set_size(fd: int, nbytes: int) -> None:
    """Set the size of a file; an added range is a hole, which reads as zeros."""
    os.ftruncate(fd, nbytes)


def lock(fd: int, *, shared: bool = False) -> bool | None:
    """Take the write lock or a read lock without waiting; return whether it was free, None if locks are unsupported."""
    # These locks belong to the open file description. They end with its last descriptor, so a free lock has no running
    # owner. Closing another descriptor of the file does not release them, but a forked child shares them.
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _READ_LOCK if shared else _WRITE_LOCK)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        return None
    return True


def release(fd: int) -> None:
    """Close a file and release its lock, which a child process with the descriptor would keep."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _NO_LOCK)
    close_quietly(fd)


def leads_to(name: bytes | str, dirfd: int, fd: int) -> bool:
    """Return whether a name in a directory is a name of an open file."""
    status = status_at(name, dirfd)
    return status is not None and os.path.samestat(status, os.fstat(fd))


def generation(fd: int) -> int:
    """Return the generation of a file, which differs between files with the same inode number; 0 if unknown."""
    try:
        return int(struct.unpack("q", fcntl.ioctl(fd, _FS_IOC_GETVERSION, bytes(8)))[0]) & 0xFFFFFFFF
    except OSError as error:
        if error.errno in UNSUPPORTED | {errno.EPERM, errno.EACCES}:  # a file system without it, or a sandbox
            return 0
        raise


def attribute(file: str | int, name: str, absent: frozenset[int] = _ABSENT) -> bytes:
    """Return an extended attribute of a file; b"" for the errors `absent`."""
    try:
        return os.getxattr(file, name)
    except OSError as error:
        if error.errno not in absent:
            raise
        return b""


def open_regular(path: bytes | str, flags: int, dirfd: int | None = None) -> int:
    """Open a regular file, relative to `dirfd` if given, without following a link and without waiting."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK, 0o600, dir_fd=dirfd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file")
    return fd


def status_at(name: bytes | str, dirfd: int | None = None) -> os.stat_result | None:
    """Return the status of a path, or of a name in a directory, without following a link; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=dirfd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def open_directory(path: str) -> int:
    """Open a directory, for names relative to it and for syncs."""
    return os.open(path or ".", os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def directory(path: str) -> Iterator[int]:
    """Open a directory for a block."""
    dirfd = open_directory(path)
    try:
        yield dirfd
    finally:
        close_quietly(dirfd)


def open_unnamed(dirfd: int) -> int | None:
    """Open a file without a name in a directory; None if the file system does not support such files."""
    # The file ends with its last descriptor, so it disappears after a crash.
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=dirfd)
    except OSError as error:
        if error.errno in {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}:
            return None
        raise


def open_new(name: bytes | str, dirfd: int | None = None) -> int:
    """Create a file with a new name."""
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=dirfd)


def link(fd: int, name: bytes, dirfd: int) -> None:
    """Give an unnamed file its first name."""
    # With `src_dir_fd` CPython calls linkat(2), which follows the link in /proc; link(2) does not (EXDEV).
    with step(_INTO_PLACE):
        os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=dirfd, dst_dir_fd=dirfd, follow_symlinks=True)


def linked(old: bytes, new: bytes, dirfd: int, new_dirfd: int) -> bool:
    """Add a name in the directory `new_dirfd` to a file in `dirfd`; return whether the file system allows the link."""
    try:
        os.link(old, new, src_dir_fd=dirfd, dst_dir_fd=new_dirfd, follow_symlinks=False)
    except OSError as error:
        if error.errno in UNSUPPORTED | {errno.EXDEV, errno.EMLINK, errno.EPERM}:
            return False
        raise
    return True


def rename(old: bytes | str, new: bytes | str, dirfd: int) -> None:
    """Rename `old` to `new`, and atomically replace an existing file."""
    inode = os.stat(old, dir_fd=dirfd, follow_symlinks=False).st_ino
    try:
        with step(_INTO_PLACE):
            os.replace(old, new, src_dir_fd=dirfd, dst_dir_fd=dirfd)
    except OSError:
        # An NFS server may report an error for a rename that has succeeded (rename(2), BUGS).
        with contextlib.suppress(OSError):
            if os.stat(new, dir_fd=dirfd, follow_symlinks=False).st_ino == inode:
                return
        raise


def unlink(name: bytes | str, dirfd: int | None = None) -> None:
    """Remove a name if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dirfd)


def unlink_inode(name: bytes, dirfd: int, inode: int) -> None:
    """Remove a name if its file has the inode number."""
    status = status_at(name, dirfd)
    if status is not None and status.st_ino == inode:
        unlink(name, dirfd)


def fsync(fd: int, *, content_only: bool = False) -> None:
    """Sync a file, or only its content without times and attributes."""
    # A failed sync is not repeated, because the kernel may report success although data is lost.
    with step(_TO_DISK):
        (os.fdatasync if content_only else os.fsync)(fd)


def fsync_directory(dirfd: int) -> None:
    """Sync the names in a directory, if the file system supports that."""
    try:
        with step(_TO_DISK):
            os.fsync(dirfd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def default_mode() -> int:
    """Return the permissions of a new file: 0666 without the bits of the umask."""
    with open("/proc/self/status", errors="replace") as file:
        umask = next((line.split()[1] for line in file if line.startswith("Umask:")), "177")
    return 0o666 & ~int(umask, 8)


def allow_descriptors(count: int) -> int:
    """Raise the limit of open files to `count`, or as far as allowed; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return count
    if soft < count:
        limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
    return max(soft, 0)


def check_address_space(nbytes: int) -> None:
    """Raise `MemoryError` if the limit of the address space leaves less than `nbytes`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    if limit - used < nbytes:
        raise MemoryError
