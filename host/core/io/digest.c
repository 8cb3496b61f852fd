/* digest.c: checksums by several threads: of a file's bytes, which differ between a damaged file
 * and a whole one, and of bytes that are copied; and the CRC-32C of a tensor's. */
#define _GNU_SOURCE /* O_CLOEXEC */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "core/core.h"
#include "core/io/crc.h"
#include "core/io/file.h"
#include "io.h"

enum { LEAST = 1 << 22, MOST_THREADS = 16 }; /* bytes for which a thread is worth its start */

/* A run of bytes, read by one thread.  to: where they are copied, and the checksum is their CRC-32;
 * NULL: it is their CRC-32C. */
typedef struct part {
  const unsigned char *at;
  unsigned char *to;
  size_t n;
  uint32_t crc;
} part;

/* Stops early when the caller is interrupted, who looks at that flag himself. */
static void *read_part(void *arg)
{
  part *p = arg;

  p->crc = 0;
  for (size_t at = 0; at < p->n && !ax_file_interrupted(); at += AX_FILE_PIECE) {
    const size_t n = p->n - at < AX_FILE_PIECE ? p->n - at : AX_FILE_PIECE;
    if (p->to) p->crc = (uint32_t)crc32_combine(p->crc, ax_crc32_copy(p->to + at, p->at + at, n), (z_off_t)n);
    else p->crc = ax_crc32c(p->crc, p->at + at, n);
  }
  return NULL;
}

/* Reads n bytes in parts at the same time, the first one by this thread; returns how many. */
static int read_parts(part *parts, const unsigned char *p, unsigned char *to, size_t n, int threads)
{
  const size_t most = n / LEAST + 1;
  const int count = (size_t)threads < most ? threads : (int)most;
  const size_t each = n / (size_t)count / 64 * 64; /* whole lines of the cache */
  pthread_t ids[MOST_THREADS];
  bool begun[MOST_THREADS] = { false };

  for (int i = 0; i < count; i++) {
    const size_t at = each * (size_t)i;
    parts[i] = (part){ .at = p + at, .to = to ? to + at : NULL, .n = i + 1 < count ? each : n - at };
  }
  for (int i = 1; i < count; i++) begun[i] = pthread_create(&ids[i], NULL, read_part, &parts[i]) == 0;
  for (int i = 0; i < count; i++)
    if (!begun[i]) read_part(&parts[i]);
  for (int i = 1; i < count; i++)
    if (begun[i]) pthread_join(ids[i], NULL);
  return count;
}

static int usable(int threads) { return threads < 1 ? 1 : threads < MOST_THREADS ? threads : MOST_THREADS; }

static uint32_t checksum(const unsigned char *p, size_t n, int threads)
{
  part parts[MOST_THREADS];
  const int count = read_parts(parts, p, NULL, n, threads);
  uint32_t crc = 0;

  for (int i = 0; i < count; i++) crc = ax_crc32c_join(crc, parts[i].crc, parts[i].n);
  return crc;
}

uint32_t ax_crc32_copy_by(int threads, void *to, const void *from, size_t n)
{
  part parts[MOST_THREADS];
  uint32_t crc;

  if (n == 0) return 0; /* `to` may be NULL */
  const int count = read_parts(parts, from, to, n, usable(threads));
  crc = parts[0].crc;
  for (int i = 1; i < count; i++) crc = (uint32_t)crc32_combine(crc, parts[i].crc, (z_off_t)parts[i].n);
  return crc;
}

/* The file is mapped: reading it into a buffer costs half as much again. */
static ax_status read_all(int fd, const char *path, const struct stat *info, int threads, bool keep,
                          ax_digest *out)
{
  struct ax_mapping *m;
  void *data;
  ax_status st;
  bool whole;

  *out = (ax_digest){ info->st_size, 0 };
  if (info->st_size == 0) return AX_OK;
  st = ax_mapping_new(fd, info, keep, &m, &data);
  if (st == AX_EIO) return ax_fail(AX_EIO, "cannot read %s: %s", path, strerror(errno));
  if (st != AX_OK) return st;
  out->crc32c = checksum(data, (size_t)info->st_size, threads);
  st = ax_file_go_on();
  whole = st == AX_OK && ax_mapping_whole(m, path);
  if (keep && whole) ax_mapping_keep(m);
  else ax_mapping_release(m);
  if (st != AX_OK) return st;
  return whole ? AX_OK
               : ax_fail(AX_EIO, "cannot read %s: it was truncated meanwhile, or its disk fails", path);
}

ax_status ax_file_digest(const char *path, int threads, bool keep, ax_digest *out)
{
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
  struct stat s;
  ax_status st;

  threads = usable(threads);
  if (fd < 0 || fstat(fd, &s) != 0) st = ax_fail(AX_EIO, "cannot read %s: %s", path, strerror(errno));
  else if (!S_ISREG(s.st_mode)) st = ax_fail(AX_EIO, "cannot read %s: it is no regular file", path);
  else st = read_all(fd, path, &s, threads, keep, out);
  if (fd >= 0) close(fd);
  return st;
}

void ax_file_forget_kept(void) { ax_mapping_forget_kept(); }

uint32_t ax_text_crc32c(const void *p, size_t n) { return ax_crc32c(0, p, n); }

ax_status ax_tensor_crc32c(ax_tensor *t, uint32_t *crc)
{
  ax_tensor *flat = NULL;
  const ax_status st = ax_tensor_bring(t, &flat);

  if (st == AX_OK) *crc = ax_crc32c(*crc, ax_data(flat), (size_t)flat->numel * ax_itemsize(flat));
  ax_tensor_release(flat);
  return st;
}
