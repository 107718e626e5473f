"""User-defined ops that do wrong, the ranks that they get, and how it is seen that nothing is left of them."""

import contextlib
import ctypes
import os
import signal
from functools import partial

import numpy as np
from command import children
from packages import install

_PR_SET_CHILD_SUBREAPER = 36
RANKS = ("rank0.npy", "rank1.npy", "rank2.npy")

OPS = """
import ctypes, os, signal, subprocess, sys, threading, time
import numpy as np
import mpired
from mpired.errors import DatatypeError

number = 3

def add(invec, inoutvec, count, datatype):
    np.add(invec, inoutvec, out=inoutvec)

# wrong arguments
def one(invec): pass
def three(invec, inoutvec, count): pass
# wrong results
def returns_array(invec, inoutvec, count, datatype): return invec + inoutvec
def none(invec, inoutvec): pass
def wrong_dtype(invec, inoutvec): return invec.astype("f4")
# exceptions
class Unspeakable(Exception):
    def __str__(self): raise RuntimeError
class Unpicklable(Exception):
    def __init__(self, one, two): super().__init__("text")
    def __reduce__(self): raise TypeError

def raises(invec, inoutvec, count, datatype): raise ValueError("bad\\nnumber")
def unspeakable(invec, inoutvec, count, datatype): raise Unspeakable
def unpicklable(invec, inoutvec, count, datatype): raise Unpicklable(1, 2)
def control(invec, inoutvec, count, datatype): raise ValueError("\\x1b[2J\\udcff")
def interrupt(invec, inoutvec, count, datatype): raise KeyboardInterrupt
def memory(invec, inoutvec, count, datatype): raise MemoryError
def system_exit(invec, inoutvec, count, datatype): sys.exit(0)
def of_mpired(invec, inoutvec, count, datatype): raise DatatypeError("somewhere", "something")
def aborts(invec, inoutvec, count, datatype): raise mpired.Abort("the norm of element 3 is zero")
# what it must not touch
def writes_invec(invec, inoutvec, count, datatype): invec[0] = 1
def adds_to_inoutvec(invec, inoutvec): inoutvec += invec; return inoutvec

# ways to end
def looks_around(invec, inoutvec, count, datatype): inoutvec += invec[0]
def compares(invec, inoutvec): return invec if invec > inoutvec else inoutvec
def exits(invec, inoutvec, count, datatype): os._exit(0)
def crashes(invec, inoutvec, count, datatype): ctypes.string_at(0)

# ways not to
def loops(invec, inoutvec, count, datatype):
    while True: pass
def sleeps(invec, inoutvec, count, datatype): time.sleep(600)
def sleeps_through_signals(invec, inoutvec, count, datatype):
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM}:
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)

# what is left behind
def child(): subprocess.Popen(["sleep", "600"])
def daemon(): subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
def twice_forked():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
def all_of_them():
    child(), daemon(), twice_forked()
    threading.Thread(target=time.sleep, args=(600,)).start()

def leaves_and_adds(invec, inoutvec, count, datatype): all_of_them(); add(invec, inoutvec, count, datatype)
def leaves_and_sleeps(invec, inoutvec, count, datatype): all_of_them(); time.sleep(600)

# standard output
def prints(invec, inoutvec, count, datatype):
    print("by print")
    os.write(1, b"by write\\n")
    subprocess.run(["echo", "by a child"])
    ctypes.CDLL(None).printf(b"by printf\\n")
    sys.stdout.write("without an end")

def prints_and_adds(invec, inoutvec, count, datatype):
    prints(invec, inoutvec, count, datatype)
    add(invec, inoutvec, count, datatype)

def prints_and_raises(invec, inoutvec, count, datatype):
    print("printed")
    raise ValueError("after it")

"""

DOUBLED = "is the name of 2 entry points (first:f of one, second:f of other); write the place of one instead"

distribution = partial(install, group="mpired.ops")


GOOD = """
import numpy as np, mpired
@mpired.op(commute=True, identity=-np.inf)
def f(a, b):
    'Good.'
    return a + b
"""


@contextlib.contextmanager
def nothing_left():
    """Check that no process is left of what the block starts: this process adopts them."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before = children(os.getpid())
    try:
        yield
        assert children(os.getpid()) == before
    finally:
        for left in set(children(os.getpid())) - set(before):
            os.kill(left, signal.SIGKILL)
            os.waitpid(left, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def total(out):
    return np.frombuffer(out, "f8").tolist()
