/* door.h: how launchers of one run recognise each other on the network. */
#ifndef AX_DOOR_H
#define AX_DOOR_H

#include "ranks.h"
#include "settings/plan.h"
#include "sha256.h"

#define AX_DOOR_MAGIC 0x6c636361u /* "accl"; another byte order gives another number */
#define AX_DOOR_VERSION 3u
#define AX_GUESTS 256 /* connections that have not introduced themselves yet; older ones are closed */
#define AX_FROM 64    /* bytes of an address's text */

/* What machine 0 sends first.  Its nonce makes a recorded hello of an earlier run worthless. */
typedef struct ax_challenge {
  uint32_t magic, version;
  uint8_t nonce[16];
} ax_challenge;
typedef struct ax_hello {
  uint32_t magic, version, layout;        /* layout: the size of a rank's record of a collective */
  int32_t machines, machine, ranks, rank; /* rank -1: a launcher */
  uint32_t mpi;                           /* tensors travel by MPI */
  uint64_t run; /* from a launcher: which job it starts, 0 for accel-run's; it gets this in the reply */
  uint8_t nonce[16];
  uint8_t code[AX_SHA256_BYTES]; /* of the challenge's nonce and what stands before, by the secret */
} ax_hello;
typedef struct ax_welcome {
  uint32_t magic, version, refused, padding;
  uint64_t run;
  char text[600];
  uint8_t code[AX_SHA256_BYTES]; /* of both nonces and what stands before */
} ax_welcome;

typedef struct ax_secret {
  uint8_t bytes[256];
  size_t n; /* 0: there is no secret, and anybody who reaches the port may join */
  const char *origin;
} ax_secret;

/* Reads --secret_file or ACCELERATE_SECRET; 0, or the exit status after printing what is wrong. */
int ax_secret_read(ax_secret *s, const ax_plan *plan);
void ax_door_random(void *to, size_t n);

/* A connection to machine 0's port. */
typedef struct ax_guest {
  int fd;
  int64_t since;
  size_t have; /* bytes of its hello */
  uint8_t nonce[16];
  ax_hello hello;
  char from[AX_FROM];
} ax_guest;

typedef struct ax_door {
  int listener; /* -1: closed */
  char address[300];
  ax_secret secret;
  ax_guest guest[AX_GUESTS];
  int guests, strangers;
  int liars; /* of the strangers: those that did not know the secret */
  char liar[AX_FROM];
} ax_door;

/* TCP options: a machine that vanishes is noticed within half a minute. */
void ax_door_prepare(int fd);
void ax_door_close(ax_door *d);
/* Sends or receives n bytes until `deadline`; 0, or an errno (ECONNRESET: the other end closed;
 * EINTR: the prompt was interrupted). */
int ax_door_move(int fd, void *buf, size_t n, bool sends, int64_t deadline);
/* Reads from all connections for at most `ms` milliseconds, and closes those of strangers.  Returns
 * true for a guest that has introduced itself and knows the secret: *out, whose connection is the
 * caller's. */
bool ax_door_hear(ax_door *d, int ms, ax_guest *out);
/* Replies to the guest.  refusal: why it may not join; "": it may. */
void ax_door_reply(const ax_door *d, const ax_guest *g, uint64_t run, const char *refusal);

/* The other side: exchanges challenge, hello and welcome on a fresh connection.  Returns 0, an
 * errno, or one of these. */
enum {
  AX_DOOR_STRANGE = -1, /* the other end is no accel-run of this version */
  AX_DOOR_LIAR = -2     /* the other end does not know the secret */
};
int ax_door_knock(int fd, const ax_secret *s, ax_hello *h, ax_welcome *w, int64_t deadline);

#endif
