/* User-defined ops in C; docs/user-ops.md tells how they are compiled and used. */
#include <stdint.h>

typedef struct { double real, imag; } Complex;

/* The example of the MPI standard: the product of complex numbers. */
void complex_product(void *invec, void *inoutvec, int *len, void *datatype)
{
    const Complex *in = invec;
    Complex *inout = inoutvec;
    for (int i = 0; i < *len; i++) {
        Complex c;
        c.real = in[i].real * inout[i].real - in[i].imag * inout[i].imag;
        c.imag = in[i].real * inout[i].imag + in[i].imag * inout[i].real;
        inout[i] = c;
    }
    (void)datatype;
}

/* The same with a count of 64 bits, as MPI_Op_create_c takes it. */
void complex_product_c(void *invec, void *inoutvec, int64_t *len, void *datatype)
{
    for (int64_t start = 0; start < *len; start += 1 << 20) {
        int part = *len - start < 1 << 20 ? (int)(*len - start) : 1 << 20;
        complex_product((Complex *)invec + start, (Complex *)inoutvec + start, &part, datatype);
    }
}

/* An op for several types: handles are those of the MPI-5.0 ABI, as in the mpi.h of an MPI that has it. */
#define MPI_INT32_T ((void *)0x250)
#define MPI_DOUBLE ((void *)0x214)

void sum_or_max(void *invec, void *inoutvec, int *len, void **datatype)
{
    if (*datatype == MPI_DOUBLE)
        for (int i = 0; i < *len; i++)
            ((double *)inoutvec)[i] += ((double *)invec)[i];
    else if (*datatype == MPI_INT32_T)
        for (int i = 0; i < *len; i++)
            if (((int32_t *)invec)[i] > ((int32_t *)inoutvec)[i])
                ((int32_t *)inoutvec)[i] = ((int32_t *)invec)[i];
}
