"""Records: files whose elements are of derived types, packed and unpacked."""
