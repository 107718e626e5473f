/* MPI_Reduce over files, one rank a file: what mpired does, as an MPI program does it.

       mpiexec -n RANKS mpi_reduce sum|maxloc RESULT FILE...

   Rank r reads the r-th FILE into memory: doubles for sum, MPI_DOUBLE_INT for maxloc, no header.
   Rank 0 writes the result, and does not wait for the disk. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct double_int {
    double value;
    int index;
};

static void give_up(const char *path)
{
    perror(path);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *new_buffer(long nbytes)
{
    void *buffer = malloc(nbytes > 0 ? nbytes : 1);
    if (buffer == NULL)
        give_up("malloc");
    return buffer;
}

static void *read_file(const char *path, long *nbytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (*nbytes = ftell(file)) < 0)
        give_up(path);
    rewind(file);
    void *buffer = new_buffer(*nbytes);
    if (fread(buffer, 1, *nbytes, file) != (size_t)*nbytes)
        give_up(path);
    fclose(file);
    return buffer;
}

static void write_file(const char *path, const void *buffer, long nbytes)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(buffer, 1, nbytes, file) != (size_t)nbytes || fclose(file) != 0)
        give_up(path);
}

int main(int argc, char **argv)
{
    int rank, nranks;
    long nbytes;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    if (argc != 3 + nranks) {
        fprintf(stderr, "usage: mpiexec -n RANKS mpi_reduce sum|maxloc RESULT FILE...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int pairs = strcmp(argv[1], "maxloc") == 0;
    long extent = pairs ? sizeof(struct double_int) : sizeof(double);
    void *sendbuf = read_file(argv[3 + rank], &nbytes);
    void *recvbuf = rank == 0 ? new_buffer(nbytes) : NULL;

    MPI_Reduce(sendbuf, recvbuf, (int)(nbytes / extent), pairs ? MPI_DOUBLE_INT : MPI_DOUBLE,
               pairs ? MPI_MAXLOC : MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        write_file(argv[2], recvbuf, nbytes);
    MPI_Finalize();
    return 0;
}
