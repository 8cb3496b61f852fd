/* hello.c: fuzz target of the meeting of machines over TCP.
 *
 * An input is what a stranger on the loopback does: its first byte says which machine we are (bit
 * 0) and whether our run goes on after the meeting (bit 1); then come connections, each a byte with
 * the number of parts that it sends (bits 0 and 1) and whether it signs them (bit 2); a part is a
 * byte with its length in steps of 8, and up to 48 bytes with which it begins (the rest are zeros).
 * The stranger knows the number of the run, as a machine of the run would: "RRRRRRRR" stands for
 * it.  The run has no secret, so that a code over the right nonces is all that its machines have to
 * show.
 *
 * Whatever it sends, the meeting ends with a status or goes on with the run, in time. */
#define _GNU_SOURCE
#include "fuzz.h"

#include "launch/machines.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 8, STEP = 8, BEGINNING = 48 };
#define SECONDS 0.02 /* that a meeting may take */

typedef struct stranger {
  const uint8_t *at, *end;
  int listener; /* as machine 0: where the machine under test comes; else -1 */
  int port;
  uint8_t run[8]; /* from a welcome */
  bool has_run, signs;
  uint8_t theirs[16], ours[16]; /* nonces of this connection: of the machine under test, of the stranger */
} stranger;

/* Writes the code behind a hello or a welcome, as one who knows the secret would. */
static void sign(stranger *s, uint8_t *part, size_t n)
{
  const bool welcomes = s->listener >= 0;
  const size_t at = welcomes ? offsetof(ax_welcome, code) : offsetof(ax_hello, code);
  ax_hmac_sha256 h;

  if (n != at + AX_SHA256_BYTES) {
    if (welcomes && n == sizeof(ax_challenge)) memcpy(s->ours, part + 8, sizeof s->ours);
    return;
  }
  ax_hmac_sha256_begin(&h, "", 0);
  ax_hmac_sha256_add(&h, s->theirs, sizeof s->theirs);
  if (welcomes) ax_hmac_sha256_add(&h, s->ours, sizeof s->ours);
  ax_hmac_sha256_add(&h, part, at);
  ax_hmac_sha256_end(&h, part + at);
}

/* The next part, with the run's number where its mark stands. */
static size_t next_part(stranger *s, uint8_t to[256 * STEP])
{
  size_t n, given;

  if (s->at >= s->end) return 0;
  n = (size_t)*s->at++ * STEP;
  given = n < BEGINNING ? n : BEGINNING;
  if (given > (size_t)(s->end - s->at)) given = (size_t)(s->end - s->at);
  memset(to, 0, n);
  memcpy(to, s->at, given);
  s->at += given;
  for (size_t i = 0; s->has_run && i + 8 <= given; i++)
    if (memcmp(to + i, "RRRRRRRR", 8) == 0) memcpy(to + i, s->run, 8);
  if (s->signs) sign(s, to, n);
  return n;
}

static void wait_for(int fd, int milliseconds)
{
  struct pollfd p = { .fd = fd, .events = POLLIN };
  poll(&p, 1, milliseconds);
}

/* Hears an answer: a challenge, a hello, or a welcome with the number of the run. */
static void hear(stranger *s, int fd)
{
  uint8_t answer[1024];
  ssize_t got;

  wait_for(fd, 5);
  got = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
  if (got == (ssize_t)sizeof(ax_challenge)) memcpy(s->theirs, answer + 8, sizeof s->theirs);
  if (got == (ssize_t)sizeof(ax_hello))
    memcpy(s->theirs, answer + offsetof(ax_hello, nonce), sizeof s->theirs);
  if (got != (ssize_t)sizeof(ax_welcome) || s->has_run) return;
  memcpy(s->run, answer + offsetof(ax_welcome, run), sizeof s->run);
  s->has_run = true;
}

/* Sends the parts of one connection.  What is shorter than a hello is followed by the end, so that
 * its reader need not wait. */
static void talk(stranger *s, int fd)
{
  uint8_t part[256 * STEP];
  const uint8_t how = s->at < s->end ? *s->at++ : 0;

  s->signs = (how & 4) != 0;
  if (s->listener < 0) hear(s, fd);
  for (int parts = how & 3; parts > 0; parts--) {
    const size_t n = next_part(s, part);
    if (n > 0 && send(fd, part, n, MSG_NOSIGNAL) < 0) return;
    if (n < sizeof(ax_challenge)) shutdown(fd, SHUT_WR);
    hear(s, fd);
  }
}

static int connect_to(int port)
{
  struct sockaddr_in a = { .sin_family = AF_INET,
                           .sin_port = htons((uint16_t)port),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  for (int tries = 0; tries < 40; tries++) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    usleep(200);
  }
  return -1;
}

static int accept_from(int listener)
{
  wait_for(listener, 30);
  return accept4(listener, NULL, NULL, SOCK_CLOEXEC);
}

static void *live(void *p)
{
  stranger *s = p;
  int fds[MOST_CONNECTIONS], n = 0;

  while (n < MOST_CONNECTIONS && s->at < s->end) {
    const int fd = s->listener >= 0 ? accept_from(s->listener) : connect_to(s->port);
    if (fd < 0) break;
    talk(s, fds[n++] = fd);
  }
  while (n > 0) close(fds[--n]);
  return NULL;
}

/* A free port of the loopback; *listener: listens there. */
static int find_port(int *listener)
{
  struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  socklen_t n = sizeof a;

  *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (bind(*listener, (struct sockaddr *)&a, sizeof a) != 0 || listen(*listener, 16) != 0 ||
      getsockname(*listener, (struct sockaddr *)&a, &n) != 0)
    fuzz_violation("no port of the loopback is free");
  return ntohs(a.sin_port);
}

/* Three machines with two ranks each. */
static void make_plan(ax_plan *plan, int mine, const char *port)
{
  static const struct {
    ax_setting_id id;
    double number;
  } numbers[] = { { AX_SET_num_machines, 3 },
                  { AX_SET_num_processes, 6 },
                  { AX_SET_timeout, SECONDS },
                  { AX_SET_stall_report, 1e9 } };

  memset(plan, 0, sizeof *plan);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    plan->set[numbers[i].id].number = numbers[i].number;
  plan->set[AX_SET_machine_rank].number = mine;
  plan->set[AX_SET_secret_file].text = "none";
  plan->set[AX_SET_main_process_ip] = (ax_setting){ 1, "127.0.0.1", "--main_process_ip" };
  plan->set[AX_SET_main_process_port] = (ax_setting){ atoi(port), port, "--main_process_port" };
}

static void meet(const ax_plan *plan, stranger *s, bool goes_on)
{
  static ax_machines machines;
  static ax_control control;
  const int64_t began = ax_monotonic_ns();
  pthread_t thread;
  int status;

  if (pthread_create(&thread, NULL, live, s) != 0) fuzz_violation("no thread");
  memset(&control, 0, sizeof control);
  status = ax_machines_meet(&machines, plan, 0, &control);
  if (status == 0 && goes_on) {
    for (int i = 0; i < 3; i++) ax_machines_watch(&machines, &control);
  }
  pthread_join(thread, NULL);
  if (ax_monotonic_ns() - began > (int64_t)6e9) fuzz_violation("the meeting took more than 6 s");
  ax_machines_tell(&machines, NULL);
  ax_machines_close(&machines);
  ax_machines_forked(&machines);
}

void fuzz_hello(const uint8_t *data, size_t size)
{
  FILE *const before = stderr;
  stranger s = { .at = data + 1, .end = data + size };
  char port[16], *said = NULL;
  size_t length;
  ax_plan plan;

  if (size < 2) return;
  s.port = find_port(&s.listener);
  snprintf(port, sizeof port, "%d", s.port);
  make_plan(&plan, data[0] & 1, port);
  if (!(data[0] & 1)) {
    close(s.listener);
    s.listener = -1;
  }
  stderr = open_memstream(&said, &length);
  meet(&plan, &s, data[0] & 2);
  fclose(stderr);
  stderr = before;
  for (const char *at = said; *at; at++)
    if (*(const unsigned char *)at < ' ' && *at != '\n' && *at != '\t')
      fuzz_violation("a message has control characters: %s", said);
  free(said);
  if (s.listener >= 0) close(s.listener);
}
