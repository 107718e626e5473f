! A user-defined op in Fortran; docs/user-ops.md tells how it is compiled and used.
! bind(c) gives it the name and the arguments of MPI_User_function.
subroutine complex_product(invec, inoutvec, len, datatype) bind(c)
    use, intrinsic :: iso_c_binding, only: c_double_complex, c_int, c_ptr
    implicit none
    integer(c_int), intent(in) :: len
    complex(c_double_complex), intent(in) :: invec(len)
    complex(c_double_complex), intent(inout) :: inoutvec(len)
    type(c_ptr), intent(in) :: datatype

    inoutvec = invec * inoutvec
end subroutine complex_product
