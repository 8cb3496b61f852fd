/* save.c: files that are written together into one folder, and the report on them.
 *
 * A save is filled by ax_safetensors_write and ax_zip_write, and written now or by a thread.  The
 * thread reads the tensors' memory where it is: handing it to the kernel costs no more than copying
 * it, and a step's forward and backward pass leave parameters and states alone.  Such
 * memory has a claim: before a write to it, the bytes that the thread has not read yet are copied.
 * Memory that scripts have pointers to is copied at once.  One save at a time is written by a
 * thread.
 *
 * All files are written before the first one is synced, so that the disk has much to do at once. */
#include "core/io/save.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"
#include "core/grow.h"
#include "core/io/content.h"
#include "dist.h"

enum { OPEN = 64 }; /* files whose sync has not come yet */

struct ax_save {
  char *folder;
  int rank, n, room;
  ax_content **files;
  char *report; /* [report_room] */
  size_t report_room;
  ax_snapshot snapshot;
  ax_commit commit; /* ranks 0: another rank commits */
  pthread_t thread;
  bool beside;     /* a thread writes it, which Ctrl-C does not end */
  bool taken;      /* with the snapshot's lock: the thread reads no tensor's memory any more */
  uint32_t number; /* from 1, the same on all ranks */
  ax_status st;
  char why[1024], note[AX_NOTE];
};

static ax_save *under_way; /* written by a thread */
static bool watching;      /* for forks */
static _Atomic bool held;  /* a test holds the thread back */
static uint32_t started;
static char note[AX_NOTE];

/* ---- making */

ax_status ax_save_new(const char *folder, int rank, ax_save **out)
{
  const size_t length = strlen(folder) + 1;
  ax_save *s = ax_calloc(1, sizeof *s);

  *out = NULL;
  if (!s) return AX_ENOMEM;
  if (!(s->folder = ax_malloc(length))) {
    ax_mfree(s);
    return AX_ENOMEM;
  }
  memcpy(s->folder, folder, length);
  s->rank = rank;
  pthread_mutex_init(&s->snapshot.lock, NULL);
  pthread_cond_init(&s->snapshot.moved, NULL);
  *out = s;
  return AX_OK;
}

void ax_save_free(ax_save *s)
{
  if (!s) return;
  for (int i = 0; i < s->n; i++) {
    if (s->files[i]->to.fd >= 0) close(s->files[i]->to.fd);
    ax_content_free(s->files[i]);
  }
  pthread_mutex_destroy(&s->snapshot.lock);
  pthread_cond_destroy(&s->snapshot.moved);
  ax_commit_clear(&s->commit);
  ax_mfree(s->files);
  ax_mfree(s->folder);
  ax_mfree(s->report);
  ax_mfree(s);
}

ax_status ax_save_add(ax_save *s, ax_content *c)
{
  const ax_status st = ax_grow(&s->files, s->n, &s->room, sizeof *s->files);

  if (st == AX_OK) s->files[s->n++] = c;
  else ax_content_free(c);
  return st;
}

/* ---- writing */

/* The name of a file in the save's folder; it may be in a folder of its own there. */
static const char *name_of(const ax_save *s, const ax_content *c)
{
  const size_t n = strlen(s->folder);
  const char *slash = strrchr(c->path, '/');

  if (strncmp(c->path, s->folder, n) == 0 && c->path[n] == '/') return c->path + n + 1;
  return slash ? slash + 1 : c->path;
}

/* Memory for the report, so that the thread needs none. */
static ax_status prepare_report(ax_save *s)
{
  s->report_room = 1;
  for (int i = 0; i < s->n; i++) s->report_room += strlen(name_of(s, s->files[i])) + 48;
  return (s->report = ax_malloc(s->report_room)) ? AX_OK : AX_ENOMEM;
}

static void all_taken(ax_save *s)
{
  pthread_mutex_lock(&s->snapshot.lock);
  s->taken = true;
  pthread_cond_broadcast(&s->snapshot.moved);
  pthread_mutex_unlock(&s->snapshot.lock);
}

static ax_status write_files(ax_save *s)
{
  ax_status st = AX_OK;
  int synced = 0;

  while (held) usleep(1000);
  for (int i = 0; i < s->n && st == AX_OK; i++) {
    ax_content *c = s->files[i];
    AX_TRY(ax_replace_create(c->fn, c->path, &c->to));
    c->to.heeds = !s->beside;
    AX_TRY(ax_content_put(c));
    if (i - synced == OPEN) AX_TRY(ax_replace_sync(&s->files[synced++]->to));
  }
  all_taken(s);
  while (synced < s->n) AX_TRY(ax_replace_sync(&s->files[synced++]->to));
out:
  all_taken(s);
  return st;
}

/* Writes this rank's files and, whatever became of them, its report: ax_commit waits for it. */
static ax_status write_all(ax_save *s)
{
  char *at = s->report;
  ax_report r = { .fd = -1 };
  ax_status st = ax_report_begin(s->folder, s->rank, &r);

  if (st == AX_OK) st = write_files(s);
  for (int i = 0; i < s->n && st == AX_OK; i++)
    at += snprintf(at, s->report_room - (size_t)(at - s->report), "%s\t%lld\t%u\n", name_of(s, s->files[i]),
                   (long long)s->files[i]->bytes, ax_content_crc32c(s->files[i]));
  return ax_report_end(&r, st, s->report, (size_t)(at - s->report));
}

ax_status ax_save_write(ax_save *s)
{
  const ax_status st = prepare_report(s);
  return st == AX_OK ? write_all(s) : st;
}

/* ---- the thread */

static void *work(void *save)
{
  ax_save *s = save;

  s->st = write_all(s);
  if (s->st != AX_OK) ax_dist_lose_save(s->number);
  if (s->commit.ranks > 0) s->st = ax_commit_run(&s->commit, s->st, s->note);
  if (s->st != AX_OK) snprintf(s->why, sizeof s->why, "%s", ax_last_error());
  return NULL;
}

/* A child has no threads but the caller's: what is being written is the parent's. */
static void forget(void) { under_way = NULL; }

static ax_status start_thread(ax_save *s)
{
  sigset_t all, former;
  int error;

  if (!watching) watching = pthread_atfork(NULL, NULL, forget) == 0;
  if (!watching) return ax_fail(AX_ENOMEM, "cannot start a thread: out of memory");
  s->beside = true;
  sigfillset(&all); /* the thread that runs Lua handles signals */
  pthread_sigmask(SIG_SETMASK, &all, &former);
  error = pthread_create(&s->thread, NULL, work, s);
  pthread_sigmask(SIG_SETMASK, &former, NULL);
  if (error) return ax_fail(AX_ENOMEM, "cannot start a thread: %s", strerror(error));
  under_way = s;
  return AX_OK;
}

static ax_status settle(ax_save *s, bool all)
{
  ax_status st = AX_OK;
  for (int i = 0; i < s->n && st == AX_OK; i++) st = ax_content_settle(s->files[i], all);
  return st;
}

static bool has_files(const ax_save *s)
{
  for (int i = 0; i < s->n; i++)
    if (ax_content_rests_in_files(s->files[i])) return true;
  return false;
}

/* Before memory is written that the thread has still to read. */
static ax_status before_write(ax_claim *claim, int64_t at)
{
  ax_save *s = under_way;

  (void)at;
  ax_claim_take_off(claim);
  if (!s) return AX_OK; /* a child's copy of it */
  pthread_mutex_lock(&s->snapshot.lock);
  while (s->snapshot.reading) pthread_cond_wait(&s->snapshot.moved, &s->snapshot.lock);
  if (has_files(s) || settle(s, true) != AX_OK) /* no memory for copies: waiting needs none */
    while (!s->taken) pthread_cond_wait(&s->snapshot.moved, &s->snapshot.lock);
  for (int i = 0; i < s->n; i++) ax_content_taken(s->files[i]);
  pthread_mutex_unlock(&s->snapshot.lock);
  return AX_OK;
}

static const ax_claim_kind unread = { .uses = AX_WRITE, .before = before_write };

void ax_save_hold(bool on) { held = on; }

static ax_status freeze(ax_save *s)
{
  ax_status st = AX_OK;

  for (int i = 0; i < s->n && st == AX_OK; i++) {
    s->files[i]->snapshot = &s->snapshot;
    st = ax_content_freeze(s->files[i]);
  }
  return st;
}

ax_status ax_save_start(ax_save *s, const ax_commit *commit)
{
  ax_status st;

  if (under_way) return ax_fail(AX_EINVAL, "another save is under way");
  s->number = ++started;
  AX_TRY(prepare_report(s));
  if (commit) AX_TRY(ax_commit_copy(commit, &s->commit));
  s->commit.number = s->number;
  AX_TRY(freeze(s));
  AX_TRY(settle(s, false));
  AX_TRY(start_thread(s));
  for (int i = 0; i < s->n; i++) ax_content_await(s->files[i], &unread);
out:
  if (st != AX_OK) ax_dist_lose_save(s->number);
  return st;
}

bool ax_save_under_way(void) { return under_way != NULL; }

ax_status ax_save_wait(void)
{
  ax_save *s = under_way;
  ax_status st;

  if (!s) return AX_OK;
  held = false;
  pthread_join(s->thread, NULL);
  under_way = NULL;
  st = s->st == AX_OK ? AX_OK : ax_fail(s->st, "%s", s->why);
  memcpy(note, s->note, sizeof note);
  ax_save_free(s);
  return st;
}

const char *ax_save_note(void)
{
  static char passed[AX_NOTE];

  memcpy(passed, note, sizeof passed);
  note[0] = '\0';
  return passed;
}
