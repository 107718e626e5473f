"""Texts of derived datatypes: those with figures in the standard, and those that are as deep as a text is long."""

from mpired.datatypes import derived

GOLDEN = [  # size, lb, extent, true lb, true extent
    ("struct([1,1],[0,8],[double,char])", 9, 0, 16, 0, 9), ("struct([1,1],[0,8],[char,double])", 9, 0, 16, 0, 16),
    ("struct([1,1],[0,4],[int,char])", 5, 0, 8, 0, 5), ("struct([1,1],[4,12],[double,char])", 9, 4, 16, 4, 9),
    ("struct([1],[3],[int])", 4, 3, 4, 3, 4), ("struct([1,1],[0,16],[char,long_double])", 17, 0, 32, 0, 32),
    ("vector(3,1,2,double)", 24, 0, 40, 0, 40), ("vector(3,1,-2,double)", 24, -32, 40, -32, 40),
    ("vector(3,2,0,double)", 48, 0, 16, 0, 16),
    ("indexed([3,1],[4,0],struct([1,1],[0,8],[double,char]))", 36, 0, 112, 0, 105),
    ("indexed([0,2],[-5,1],double)", 16, 8, 16, 8, 16), ("resized(-4,24,double)", 8, -4, 24, 0, 8),
    ("contiguous(2,resized(-4,24,double))", 16, -4, 48, 0, 32), ("resized(0,-8,double)", 8, 0, -8, 0, 8),
    ("subarray([4,6],[2,3],[1,2],C,double)", 48, 0, 192, 64, 72),
    ("subarray([4,6],[2,3],[1,2],F,double)", 48, 0, 192, 72, 80),
    ("darray(4,1,[10],[cyclic],[2],[4],C,double)", 16, 0, 80, 16, 16),
    ("darray(4,3,[10],[block],[dflt],[4],C,double)", 8, 0, 80, 72, 8), ("contiguous(2,double_int)", 24, 0, 32, 0, 28),
    ("hindexed([1,1],[0,9],int)", 8, 0, 16, 0, 13), ("vector(3,0,2,double)", 0, 0, 0, 0, 0),
]  # fmt: skip


def some(count, item):
    return f"[{','.join([str(item)] * count)}]"


def nested(before, after, inner="byte"):
    """Return a type in a type in a type, as deep as is allowed."""
    depth = derived.MAX_DEPTH // before.count("(")
    return before * depth + inner + after * depth, depth


DEEP = {
    "dup": ("dup(", ")"),
    "contiguous": ("contiguous(1,", ")"),
    "resized": ("resized(0,8,", ")"),
    "vector": ("vector(1,1,1,", ")"),
    "lines": ("vector(1,1,2,resized(0,9,", "))"),
    "hindexed": ("hindexed([1],[1],", ")"),
    "distributed": ("darray(1,0,[1],[none],[dflt],[1],C,", ")"),
    "structures": ("struct([1,1],[1,0],[byte,", "])"),
    "structures after": ("struct([1,1],[1,0],[", ",byte])"),
    "structures between": ("struct([1,1,1],[1,0,9],[byte,", ",char])"),
    "without gaps": ("struct([1,1],[0,1],[char,", "])"),
    "far apart": ("struct([1,1],[9000000,0],[char,", "])"),
    "with pairs": ("struct([1,1,1],[1,0,7],[byte,", ",pair(int,short)])"),
    "empty": ("struct([1,1],[0,1],[resized(0,9,contiguous(0,int)),", "])"),
    "of all sorts": ("dup(struct([1,1],[1,0],[byte,resized(0,9,vector(1,1,2,", "))]))"),
    "twice": ("hindexed_block(1,[0,0],", ")"),  # too much after 63
}
