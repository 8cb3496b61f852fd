/* mpi.c: messages through the system's MPI library. */
#include "messages.h"

#include <stdio.h>
#include <string.h>

#include <mpi.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request's handle must fit");

/* Ours: nobody else's messages, and errors that are returned. */
static MPI_Comm world = MPI_COMM_NULL;

static int begin(int *rank, int *size)
{
  int given, e = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given);

  if (e == MPI_SUCCESS) e = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (e == MPI_SUCCESS) e = MPI_Comm_dup(MPI_COMM_WORLD, &world);
  if (e == MPI_SUCCESS) e = MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  if (e == MPI_SUCCESS) e = MPI_Comm_rank(world, rank);
  return e == MPI_SUCCESS ? MPI_Comm_size(world, size) : e;
}

static int end(void) { return MPI_Finalize(); }

static void keep(ax_mpi_request *out, const MPI_Request *r)
{
  out->handle = 0;
  memcpy(&out->handle, r, sizeof *r);
}

static int send(const void *bytes, size_t n, int to, int tag, ax_mpi_request *out)
{
  MPI_Request r = MPI_REQUEST_NULL;
  const int e = MPI_Isend(bytes, (int)n, MPI_BYTE, to, tag, world, &r);

  keep(out, &r);
  return e;
}

static int receive(void *bytes, size_t n, int from, int tag, ax_mpi_request *out)
{
  MPI_Request r = MPI_REQUEST_NULL;
  const int e = MPI_Irecv(bytes, (int)n, MPI_BYTE, from, tag, world, &r);

  keep(out, &r);
  return e;
}

static int test(ax_mpi_request *request, int *ended)
{
  MPI_Request r;
  int e;

  memcpy(&r, &request->handle, sizeof r);
  e = MPI_Test(&r, ended, MPI_STATUS_IGNORE);
  keep(request, &r);
  return e;
}

static void text(int error, char *buf, size_t size)
{
  char whole[MPI_MAX_ERROR_STRING];
  int n = 0;

  if (MPI_Error_string(error, whole, &n) != MPI_SUCCESS) n = 0;
  snprintf(buf, size, "%.*s", n, whole);
}

const ax_mpi_plugin *ax_mpi_get(void) __attribute__((visibility("default")));
const ax_mpi_plugin *ax_mpi_get(void)
{
  static const ax_mpi_plugin plugin = { AX_MPI_ABI, begin, end, send, receive, test, text };
  return &plugin;
}
