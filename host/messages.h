/* messages.h: the interface between the host and the plugin libax_mpi.so, which holds all that
 * needs an MPI library.  Messages between processes, and nothing else: what they mean is decided in
 * core/dist/chain.c. */
#ifndef AX_MESSAGES_H
#define AX_MESSAGES_H

#include <stddef.h>
#include <stdint.h>

#define AX_MPI_ABI 1
#define AX_MPI_ENTRY "ax_mpi_get"
#define AX_MPI_FILE "libax_mpi.so"

/* A message under way; MPI's own handle is a pointer or an int. */
typedef struct ax_mpi_request {
  uint64_t handle;
} ax_mpi_request;

/* All but `text` return 0, or an error of MPI's. */
typedef struct ax_mpi_plugin {
  uint32_t abi;
  /* Starts MPI; returns when all its processes have come.  Errors are returned, not fatal. */
  int (*begin)(int *rank, int *size);
  /* Ends MPI; all its processes call it. */
  int (*end)(void);
  /* Messages between two processes with one tag arrive in the order in which they were sent.  The
   * bytes stay in place until `test` says that the message has ended. */
  int (*send)(const void *bytes, size_t n, int to, int tag, ax_mpi_request *out);
  int (*receive)(void *bytes, size_t n, int from, int tag, ax_mpi_request *out);
  int (*test)(ax_mpi_request *r, int *ended);
  void (*text)(int error, char *buf, size_t size);
} ax_mpi_plugin;

typedef const ax_mpi_plugin *(*ax_mpi_entry)(void);

#endif
