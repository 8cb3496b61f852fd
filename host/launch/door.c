/* door.c: the door of machine 0.
 *
 * Whoever connects gets a number that was never used before, and introduces itself with a code over
 * it (HMAC-SHA-256) that only one who knows the run's secret can make; the reply carries such a
 * code too.  All that have connected are heard at once, a byte at a time if need be: whoever is
 * silent, slow or says something else holds up nobody, and is sent away after a moment. */
#define _GNU_SOURCE
#include "door.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ax.h"
#include "script/script.h"

#define HELLO_NS ((int64_t)2000000000) /* to introduce itself */
#define NAMED 4                        /* strangers that get a line each */

/* ---- secrets */

void ax_door_random(void *to, size_t n)
{
  for (size_t done = 0; done < n;) {
    const ssize_t got = getrandom((char *)to + done, n - done, 0);
    if (got > 0) done += (size_t)got;
  }
}

static int read_file(ax_secret *s, const ax_setting *file)
{
  const int fd = open(file->text, O_RDONLY | O_CLOEXEC);
  struct stat info;
  ssize_t n = fd < 0 ? -1 : read(fd, s->bytes, sizeof s->bytes);

  if (n < 0) {
    ax_print(stderr, "accel-run: %s: %s cannot be read: %s\n", file->origin, file->text, strerror(errno));
    if (fd >= 0) close(fd);
    return AX_EXIT_USAGE;
  }
  if (fstat(fd, &info) == 0 && (info.st_mode & 077) != 0)
    ax_print(stderr, "accel-run: %s: others may read %s (chmod 600 helps)\n", file->origin, file->text);
  close(fd);
  while (n > 0 && (s->bytes[n - 1] == '\n' || s->bytes[n - 1] == '\r')) n--;
  s->n = (size_t)n;
  s->origin = file->origin;
  if (n > 0 && memchr(s->bytes, 0, s->n)) { /* HMAC fills a key up with NULs: "x" would be as good as "x\0" */
    ax_print(stderr, "accel-run: %s: %s has a NUL among its bytes; expected a secret without\n", file->origin,
             file->text);
    return AX_EXIT_USAGE;
  }
  if (n >= 8 && (size_t)n < sizeof s->bytes) return 0;
  ax_print(stderr, "accel-run: %s: %s holds %zd bytes; expected a secret of 8 to %zu\n", file->origin,
           file->text, n, sizeof s->bytes - 1);
  return AX_EXIT_USAGE;
}

int ax_secret_read(ax_secret *s, const ax_plan *plan)
{
  const ax_setting *file = &plan->set[AX_SET_secret_file];
  const char *text = getenv("ACCELERATE_SECRET");

  memset(s, 0, sizeof *s);
  if (file->number) return read_file(s, file);
  if (!text || !*text) return 0;
  s->n = strlen(text);
  s->origin = "ACCELERATE_SECRET";
  if (s->n >= 8 && s->n < sizeof s->bytes) {
    memcpy(s->bytes, text, s->n);
    return 0;
  }
  ax_print(stderr, "accel-run: ACCELERATE_SECRET has %zu characters; expected 8 to %zu\n", s->n,
           sizeof s->bytes - 1);
  return AX_EXIT_USAGE;
}

/* The code of the nonces and n bytes. */
static void sign(const ax_secret *s, const uint8_t *first, const uint8_t *second, const void *p, size_t n,
                 uint8_t out[AX_SHA256_BYTES])
{
  ax_hmac_sha256 h;

  ax_hmac_sha256_begin(&h, s->bytes, s->n);
  ax_hmac_sha256_add(&h, first, 16);
  if (second) ax_hmac_sha256_add(&h, second, 16);
  ax_hmac_sha256_add(&h, p, n);
  ax_hmac_sha256_end(&h, out);
}

/* ---- bytes */

void ax_door_prepare(int fd)
{
  const int on = 1, idle = 10, every = 5, times = 4, unanswered = 30000;

  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof unanswered);
}

int ax_door_move(int fd, void *buf, size_t n, bool sends, int64_t deadline)
{
  struct pollfd p = { .fd = fd, .events = sends ? POLLOUT : POLLIN };
  char *at = buf;

  while (n > 0) {
    const ssize_t k = sends ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
    int64_t left;
    if (k > 0) {
      at += k;
      n -= (size_t)k;
      continue;
    }
    if (k == 0) return ECONNRESET;
    if (errno != EAGAIN && errno != EINTR) return errno;
    if (ax_interrupted) return EINTR;
    if ((left = deadline - ax_monotonic_ns()) <= 0) return ETIMEDOUT;
    poll(&p, 1, left > 1000000000 ? 1000 : (int)(left / 1000000) + 1);
  }
  return 0;
}

/* ---- machine 0 */

void ax_door_close(ax_door *d)
{
  while (d->guests > 0) close(d->guest[--d->guests].fd);
  if (d->listener >= 0) close(d->listener);
  d->listener = -1;
}

/* Sends a guest away; the first few are reported, lest a flood of them hides all else. */
static void send_away(ax_door *d, int i, const char *why)
{
  ax_guest *g = &d->guest[i];

  if (++d->strangers <= NAMED)
    ax_print(stderr, "accel-run: a connection from %s to %s is none of accel-run's: %s; it was closed\n",
             g->from, d->address, why);
  else if (d->strangers == NAMED + 1)
    ax_print(stderr, "accel-run: more such connections to %s are closed without a line\n", d->address);
  close(g->fd);
  memmove(g, g + 1, (size_t)(--d->guests - i) * sizeof *g);
}

static void refuse(ax_door *d, int i, const char *text, const char *why)
{
  ax_door_reply(d, &d->guest[i], 0, text);
  send_away(d, i, why);
}

/* Accepts all that wait. */
static void let_in(ax_door *d)
{
  struct sockaddr_storage a;
  socklen_t length = sizeof a;
  int fd;

  while ((fd = accept4(d->listener, (struct sockaddr *)&a, &length, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
    ax_challenge c = { AX_DOOR_MAGIC, AX_DOOR_VERSION, { 0 } };
    ax_guest *g;
    if (d->guests == AX_GUESTS) send_away(d, 0, "too many others came after it");
    g = &d->guest[d->guests++];
    memset(g, 0, sizeof *g);
    g->fd = fd;
    g->since = ax_monotonic_ns();
    ax_door_prepare(fd);
    if (getnameinfo((struct sockaddr *)&a, length, g->from, sizeof g->from, NULL, 0, NI_NUMERICHOST) != 0)
      snprintf(g->from, sizeof g->from, "?");
    /* IPv4 */
    if (strncmp(g->from, "::ffff:", 7) == 0) memmove(g->from, g->from + 7, strlen(g->from + 7) + 1);
    ax_door_random(g->nonce, sizeof g->nonce);
    memcpy(c.nonce, g->nonce, sizeof c.nonce);
    (void)!send(fd, &c, sizeof c, MSG_NOSIGNAL); /* a fresh connection has room */
    length = sizeof a;
  }
}

/* Reads what guest i has sent.  1: its hello is complete; 0: not yet; -1: it was sent away. */
static int read_guest(ax_door *d, int i)
{
  ax_guest *g = &d->guest[i];
  const ssize_t k = recv(g->fd, (char *)&g->hello + g->have, sizeof g->hello - g->have, 0);
  char text[200];

  if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
    return send_away(d, i, k == 0 ? "it ended" : strerror(errno)), -1;
  if (k > 0) g->have += (size_t)k;
  if (g->have >= sizeof g->hello.magic && g->hello.magic != AX_DOOR_MAGIC)
    return send_away(d, i, "it begins with other bytes, or bytes in another order"), -1;
  if (g->have >= offsetof(ax_hello, layout) && g->hello.version != AX_DOOR_VERSION) {
    snprintf(text, sizeof text,
             "this accel-run speaks version %u of the protocol, and machine 0 %u: all machines need the same",
             g->hello.version, AX_DOOR_VERSION);
    return refuse(d, i, text, "it speaks another version of the protocol"), -1;
  }
  if (g->have == sizeof g->hello) return 1;
  if (ax_monotonic_ns() - g->since > HELLO_NS) return send_away(d, i, "it did not introduce itself"), -1;
  return 0;
}

static bool knows_secret(const ax_door *d, const ax_guest *g)
{
  uint8_t code[AX_SHA256_BYTES];

  sign(&d->secret, g->nonce, NULL, &g->hello, offsetof(ax_hello, code), code);
  return ax_same_bytes(code, g->hello.code, sizeof code);
}

bool ax_door_hear(ax_door *d, int ms, ax_guest *out)
{
  struct pollfd p[AX_GUESTS + 1];

  p[0] = (struct pollfd){ .fd = d->listener, .events = POLLIN };
  for (int i = 0; i < d->guests; i++) p[i + 1] = (struct pollfd){ .fd = d->guest[i].fd, .events = POLLIN };
  poll(p, (nfds_t)d->guests + 1, ms);
  let_in(d);
  for (int i = 0; i < d->guests;) {
    const int state = read_guest(d, i);
    if (state == 0) i++;
    if (state != 1) continue;
    if (!knows_secret(d, &d->guest[i])) {
      snprintf(d->liar, sizeof d->liar, "%s", d->guest[i].from);
      d->liars++;
      refuse(d, i, d->secret.n ? "machine 0 has another secret" : "machine 0 has no secret",
             d->secret.n ? "it does not know the secret" : "it has a secret, and machine 0 has none");
      continue;
    }
    *out = d->guest[i];
    memmove(&d->guest[i], &d->guest[i + 1], (size_t)(--d->guests - i) * sizeof *d->guest);
    return true;
  }
  return false;
}

void ax_door_reply(const ax_door *d, const ax_guest *g, uint64_t run, const char *refusal)
{
  ax_welcome w;

  memset(&w, 0, sizeof w);
  w.magic = AX_DOOR_MAGIC;
  w.version = AX_DOOR_VERSION;
  w.refused = refusal[0] != '\0';
  w.run = run;
  snprintf(w.text, sizeof w.text, "%s", refusal);
  sign(&d->secret, g->hello.nonce, g->nonce, &w, offsetof(ax_welcome, code), w.code);
  (void)!send(g->fd, &w, sizeof w, MSG_NOSIGNAL); /* the first bytes behind the challenge: there is room */
}

/* ---- the other machines */

int ax_door_knock(int fd, const ax_secret *s, ax_hello *h, ax_welcome *w, int64_t deadline)
{
  uint8_t code[AX_SHA256_BYTES];
  ax_challenge c;
  int e = ax_door_move(fd, &c, sizeof c, false, deadline);

  if (e != 0) return e;
  if (c.magic != AX_DOOR_MAGIC || c.version != AX_DOOR_VERSION) return AX_DOOR_STRANGE;
  ax_door_random(h->nonce, sizeof h->nonce);
  sign(s, c.nonce, NULL, h, offsetof(ax_hello, code), h->code);
  if ((e = ax_door_move(fd, h, sizeof *h, true, deadline)) != 0) return e;
  if ((e = ax_door_move(fd, w, sizeof *w, false, deadline)) != 0) return e;
  w->text[sizeof w->text - 1] = '\0';
  ax_text_clean(w->text);
  if (w->magic != AX_DOOR_MAGIC) return AX_DOOR_STRANGE;
  sign(s, h->nonce, c.nonce, w, offsetof(ax_welcome, code), code);
  return ax_same_bytes(code, w->code, sizeof code) ? 0 : AX_DOOR_LIAR;
}
