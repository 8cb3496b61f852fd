/* allreduce.c: MPI_Allreduce of 64 MB of float32, as bench/allreduce.lua measures it; one line of
 * JSON. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1 << 24, WARM = 5, TIMED = 20 };

static int order(const void *a, const void *b)
{
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
  float *x = calloc(COUNT, sizeof *x);
  double times[TIMED];
  int rank, ranks;

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 0; x && i < WARM + TIMED; i++) {
    double began;
    MPI_Barrier(MPI_COMM_WORLD);
    began = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, x, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (i >= WARM) times[i - WARM] = MPI_Wtime() - began;
  }
  qsort(times, TIMED, sizeof *times, order);
  if (rank == 0) printf("{\"ranks\":%d,\"64MB_us\":%.0f}\n", ranks, times[TIMED / 2] * 1e6);
  MPI_Finalize();
  free(x);
  return 0;
}
