/* commit.c: making a checkpoint appear whole or not at all.
 *
 * Ranks write into a draft beside the final folder (save.h).  When all have written, the rank that
 * leads adds the manifest, gives the draft its name in one step and syncs the parent.  A process
 * that is killed at any moment leaves the former checkpoint or the new one. */
#define _GNU_SOURCE /* renameat2, nftw */
#include "core/io/save.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/core.h"
#include "core/io/manifest_entries.h"
#include "dist.h"
#include "manifest.h"
#include "ranks.h"

/* ---- reports */

ax_status ax_report_begin(const char *folder, int rank, ax_report *r)
{
  snprintf(r->path, sizeof r->path, "%s/.rank_%d", folder, rank);
  snprintf(r->part, sizeof r->part, "%s.part", r->path);
  r->fd = open(r->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  return r->fd >= 0 ? AX_OK : ax_fail(AX_EIO, "cannot write %s: %s", r->part, strerror(errno));
}

static bool put_all(int fd, const char *text, size_t n)
{
  while (n > 0) {
    const ssize_t k = write(fd, text, n);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0) return false;
    text += k, n -= (size_t)k;
  }
  return true;
}

ax_status ax_report_end(ax_report *r, ax_status st, const char *text, size_t n)
{
  char failed[sizeof r->part];

  if (r->fd < 0) return st;
  if (st == AX_OK && (!put_all(r->fd, text, n) || rename(r->part, r->path) != 0))
    st = ax_fail(AX_EIO, "cannot write %s: %s", r->path, strerror(errno));
  close(r->fd);
  r->fd = -1;
  if (st == AX_OK) return AX_OK;
  snprintf(failed, sizeof failed, "%s.failed", r->path);
  (void)rename(r->part, failed); /* the waiting rank finds this name; our own error says why */
  return st;
}

typedef enum { MISSING, FAILED, READY } report_state;

/* Where the disk takes no report, the rank's record says that there will be none. */
static report_state look_for(const ax_commit *c, int rank)
{
  char path[PATH_MAX];

  snprintf(path, sizeof path, "%s/.rank_%d", c->draft, rank);
  if (access(path, F_OK) == 0) return READY;
  snprintf(path, sizeof path, "%s/.rank_%d.failed", c->draft, rank);
  return access(path, F_OK) == 0 || ax_dist_save_lost(rank, c->number) ? FAILED : MISSING;
}

/* Waits until each rank has written its files.  EABORTED where one has failed, or the run is being
 * ended; the rank that failed says why. */
static ax_status await_reports(const ax_commit *c)
{
  const int64_t since = ax_monotonic_ns();
  struct timespec pause = { .tv_nsec = 200000 };
  ax_status st = AX_OK;

  for (int r = c->first; r < c->first + c->ranks; r++)
    for (report_state s; (s = look_for(c, r)) != READY;) {
      if (s == FAILED) {
        st = ax_fail(AX_EABORTED, "rank %d could not write its files", r);
        break;
      }
      const ax_status wait = ax_dist_patience(since);
      if (wait == AX_ETIMEOUT)
        return ax_fail(AX_ETIMEOUT, "rank %d has not written its files: %s", r, ax_last_error());
      if (wait != AX_OK) return wait;
      nanosleep(&pause, NULL);
      if (pause.tv_nsec < 20000000) pause.tv_nsec *= 2;
    }
  return st;
}

/* ---- folders */

static ax_status failed(const char *what, const char *path)
{
  return ax_fail(AX_EIO, "cannot %s %s: %s", what, path, strerror(errno));
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
  (void)info;
  (void)kind;
  (void)at;
  return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

/* A file, or a folder with all that is in it; links are removed, not followed. */
static ax_status remove_tree(const char *path)
{
  if (access(path, F_OK) != 0 && errno == ENOENT) return AX_OK;
  return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 ? AX_OK : failed("remove", path);
}

static ax_status move(const char *from, const char *to)
{
  if (rename(from, to) == 0) return AX_OK;
  return ax_fail(AX_EIO, "cannot rename %s to %s: %s", from, to, strerror(errno));
}

/* Writes the part of a path before its last name: it ends with a slash, or is empty. */
static void folder_above(const char *path, char to[PATH_MAX])
{
  const char *slash = strrchr(path, '/');
  snprintf(to, PATH_MAX, "%.*s", slash ? (int)(slash + 1 - path) : 0, path);
}

/* Can another folder take the place of this one?  Not where its parent is on another disk or takes
 * no new names, and not where this process, which would lose its place, is in it. */
static bool can_change_places(const char *path, const char *parent)
{
  struct stat own, above, here;

  if (stat(path, &own) != 0) return true; /* nothing is there */
  return path[1] && stat(parent, &above) == 0 && own.st_dev == above.st_dev && access(parent, W_OK) == 0 &&
         (stat(".", &here) != 0 || own.st_ino != here.st_ino || own.st_dev != here.st_dev);
}

ax_status ax_commit_draft(const char *path, char *draft, size_t size)
{
  char parent[PATH_MAX];
  int n;

  folder_above(path, parent);
  if (can_change_places(path, *parent ? parent : "."))
    n = snprintf(draft, size, "%s.%s.saving", parent, path + strlen(parent));
  else n = snprintf(draft, size, "%s/.accelerate.saving", path);
  return n >= 0 && (size_t)n < size ? AX_OK
                                    : ax_fail(AX_EIO, "cannot save to %s: its path is too long", path);
}

static bool listed(const char *lines, const char *name)
{
  const size_t n = strlen(name);
  for (const char *at = lines; at && *at; at = strchr(at, '\n') + 1)
    if (strncmp(at, name, n) == 0 && at[n] == '\n') return true;
  return false;
}

/* Does a line begin with `start`? */
static bool holds(const char *lines, const char *start)
{
  const size_t n = strlen(start);
  for (const char *at = lines; at && *at; at = strchr(at, '\n') + 1)
    if (strncmp(at, start, n) == 0) return true;
  return false;
}

static bool is_folder(DIR *parent, const char *name)
{
  struct stat s;
  return fstatat(dirfd(parent), name, &s, AT_SYMLINK_NOFOLLOW) != 0 || S_ISDIR(s.st_mode);
}

/* A folder in another one, behind no link; NULL: it cannot be read. */
static DIR *open_below(DIR *parent, const char *name)
{
  const int fd = openat(dirfd(parent), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *d = fd >= 0 ? fdopendir(fd) : NULL;

  if (fd >= 0 && !d) close(fd);
  return d;
}

/* Counts the names in a folder that are no lines behind `prefix`: "", or the folder's name and a
 * slash.  Folders count, but for those in the checkpoint's folder whose files are all listed.
 * Takes d. */
static int count_others(DIR *d, const char *prefix, const char *lines)
{
  char name[2 * NAME_MAX + 2];
  int n = 0;

  for (const struct dirent *e; (e = readdir(d));) {
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    snprintf(name, sizeof name, "%s%s", prefix, e->d_name);
    if (!is_folder(d, e->d_name)) {
      n += !listed(lines, name);
      continue;
    }
    strcat(name, "/");
    DIR *below = !*prefix && holds(lines, name) ? open_below(d, e->d_name) : NULL;
    n += below ? count_others(below, name, lines) : 1;
  }
  closedir(d);
  return n;
}

/* How many names a folder has besides those in `lines`; -1: it cannot be read. */
static int others_in(const char *path, const char *lines)
{
  DIR *d = opendir(path);
  return d ? count_others(d, "", lines) : -1;
}

/* Can this line be a file's name in a folder? */
static bool is_plain(const char *line, size_t n)
{
  if (n == 0 || n > NAME_MAX || (line[0] == '.' && (n == 1 || (n == 2 && line[1] == '.')))) return false;
  for (size_t i = 0; i < n; i++)
    if (line[i] == '/' || (unsigned char)line[i] < 32 || line[i] == 127) return false;
  return true;
}

/* Is it a file's name, or that of a file in a folder of the checkpoint's? */
static bool is_name(const char *line, size_t n)
{
  const char *slash = memchr(line, '/', n);

  if (!slash) return is_plain(line, n);
  return is_plain(line, (size_t)(slash - line)) && is_plain(slash + 1, n - (size_t)(slash + 1 - line));
}

/* The names come from a manifest, which anybody can have written: none may lead out of the
 * folder. */
static ax_status check_names(const char *path, const char *lines)
{
  for (const char *at = lines; at && *at; at = strchr(at, '\n') + 1) {
    const size_t n = (size_t)(strchr(at, '\n') - at);
    if (!is_name(at, n))
      return ax_fail(AX_EIO,
                     "the manifest of %s lists '%.*s', which is no name of a file in it; nothing was removed",
                     path, n > 200 ? 200 : (int)n, at);
  }
  return AX_OK;
}

/* Removes a file of a folder, or of a folder in it, which goes when it is empty.  What is a folder,
 * or behind a link, is left alone. */
static bool remove_name(int folder, char *name)
{
  char *slash = strchr(name, '/');
  int below;
  bool ok;

  if (!slash) return unlinkat(folder, name, 0) == 0 || errno == ENOENT || errno == EISDIR;
  *slash = '\0';
  below = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (below < 0) {
    ok = errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
    *slash = '/';
    return ok;
  }
  ok = remove_name(below, slash + 1);
  close(below);
  if (ok) (void)unlinkat(folder, name, AT_REMOVEDIR);
  *slash = '/';
  return ok;
}

/* Removes the files of a former checkpoint; what is a folder now is none of them. */
static ax_status remove_listed(const char *path, const char *lines)
{
  const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  char name[2 * NAME_MAX + 2];
  ax_status st = folder < 0 ? failed("open", path) : AX_OK;

  for (const char *at = lines; st == AX_OK && at && *at; at = strchr(at, '\n') + 1) {
    snprintf(name, sizeof name, "%.*s", (int)(strchr(at, '\n') - at), at);
    if (!remove_name(folder, name))
      st = ax_fail(AX_EIO, "cannot remove %s/%s: %s", path, name, strerror(errno));
  }
  if (folder >= 0) close(folder);
  return st;
}

/* ---- the manifest */

static ax_status read_reports(const ax_commit *c, ax_manifest *all)
{
  char path[PATH_MAX];
  ax_status st = AX_OK;

  for (int r = c->first; r < c->first + c->ranks && st == AX_OK; r++) {
    snprintf(path, sizeof path, "%s/.rank_%d", c->draft, r);
    st = ax_manifest_add(all, path);
    if (st == AX_OK && unlink(path) != 0) st = failed("remove", path);
  }
  ax_manifest_sort(all);
  return st;
}

/* ---- the place */

static ax_status make_folder(const char *path)
{
  return mkdir(path, 0777) == 0 || errno == EEXIST ? AX_OK : failed("make", path);
}

/* Into a folder that has other files, too, a checkpoint's are moved one by one, and those of the
 * former checkpoint go.  Without the manifest, which comes last, nobody takes it for whole. */
static ax_status move_into(const ax_commit *c, const ax_manifest *all)
{
  char from[PATH_MAX], to[PATH_MAX];
  ax_status st;

  AX_TRY(remove_listed(c->path, AX_MANIFEST "\n"));
  AX_TRY(ax_folder_sync(c->path));
  AX_TRY(remove_listed(c->path, c->former));
  AX_TRY(ax_manifest_each_folder(all, c->path, make_folder));
  for (int i = 0; i < all->n; i++) {
    snprintf(from, sizeof from, "%s/%s", c->draft, all->list[i].name);
    snprintf(to, sizeof to, "%s/%s", c->path, all->list[i].name);
    AX_TRY(move(from, to));
  }
  AX_TRY(ax_manifest_each_folder(all, c->path, ax_folder_sync));
  AX_TRY(ax_folder_sync(c->path));
  snprintf(from, sizeof from, "%s/" AX_MANIFEST, c->draft);
  snprintf(to, sizeof to, "%s/" AX_MANIFEST, c->path);
  AX_TRY(move(from, to));
  AX_TRY(ax_folder_sync(c->path));
out:
  return st;
}

typedef enum { MOVED, EXCHANGED, FILLED } manner;

/* Gives the draft its name.  A former checkpoint of that name changes places with it. */
static ax_status put_in_place(const ax_commit *c, const ax_manifest *all, manner *how)
{
  struct stat s;
  const bool there = stat(c->path, &s) == 0;

  *how = MOVED;
  if (there && !S_ISDIR(s.st_mode)) return ax_fail(AX_EIO, "%s is a file, not a directory", c->path);
  if (!there || others_in(c->path, NULL) == 0) return move(c->draft, c->path);
  *how = EXCHANGED;
  if (c->former && others_in(c->path, c->former) == 0 &&
      renameat2(AT_FDCWD, c->draft, AT_FDCWD, c->path, RENAME_EXCHANGE) == 0)
    return AX_OK;
  *how = FILLED;
  return move_into(c, all);
}

/* A save that failed after that leaves what was there before. */
static void take_back(const ax_commit *c, manner how)
{
  if (how == MOVED) (void)rename(c->path, c->draft);
  if (how == EXCHANGED) (void)renameat2(AT_FDCWD, c->draft, AT_FDCWD, c->path, RENAME_EXCHANGE);
}

static ax_status sync_parent(const char *path)
{
  char parent[PATH_MAX];

  folder_above(path, parent);
  return ax_folder_sync(*parent ? parent : ".");
}

/* A checkpoint loses its name first: one that is half removed is none.  `parent` ends with a slash,
 * or is empty. */
static ax_status remove_checkpoint(const char *parent, const char *name, size_t n)
{
  char path[PATH_MAX], doomed[PATH_MAX];
  ax_status st;

  if (!is_plain(name, n)) return ax_fail(AX_EIO, "'%.*s' is no name of a checkpoint", (int)n, name);
  if (snprintf(path, sizeof path, "%s%.*s", parent, (int)n, name) >= PATH_MAX ||
      snprintf(doomed, sizeof doomed, "%s.%.*s.removed", parent, (int)n, name) >= PATH_MAX)
    return ax_fail(AX_EIO, "cannot remove %s%.*s: its path is too long", parent, (int)n, name);
  AX_TRY(remove_tree(doomed));
  AX_TRY(move(path, doomed));
  AX_TRY(remove_tree(doomed));
out:
  return st;
}

/* The new checkpoint is there by now: an older one that stays is no failure. */
static void prune(const ax_commit *c, char *note)
{
  char parent[PATH_MAX];

  folder_above(c->path, parent);
  for (const char *at = c->old; at && *at; at = strchr(at, '\n') + 1)
    if (remove_checkpoint(parent, at, (size_t)(strchr(at, '\n') - at)) != AX_OK && !*note)
      snprintf(note, AX_NOTE, "%s is saved, but an older one stays: %s", c->path, ax_last_error());
}

static ax_status finish(const ax_commit *c, ax_manifest *all, char *note)
{
  manner how;
  ax_status st;

  AX_TRY(check_names(c->path, c->former));
  AX_TRY(read_reports(c, all));
  AX_TRY(ax_manifest_write(all, c->draft, c->facts));
  AX_TRY(ax_manifest_each_folder(all, c->draft, ax_folder_sync));
  AX_TRY(ax_folder_sync(c->draft));
  AX_TRY(put_in_place(c, all, &how));
  if ((st = sync_parent(c->path)) != AX_OK) {
    take_back(c, how);
    goto out;
  }
  AX_TRY(remove_tree(c->draft));
  prune(c, note);
out:
  return st;
}

ax_status ax_commit_run(const ax_commit *c, ax_status own, char *note)
{
  ax_manifest all = { 0 };
  char why[1024] = "";
  ax_status st;

  *note = '\0';

  if (own != AX_OK) snprintf(why, sizeof why, "%s", ax_last_error());
  st = await_reports(c);
  if (st == AX_OK) st = finish(c, &all, note);
  ax_manifest_clear(&all);
  if (st == AX_OK) ax_shm_saved(c->path);
  if (st == AX_OK) return AX_OK;
  if (own == AX_OK) snprintf(why, sizeof why, "%s", ax_last_error());
  (void)remove_tree(c->draft); /* what is left there, the next save removes */
  return ax_fail(own == AX_OK ? st : own, "%s", why);
}

/* ---- copies, for the thread */

static ax_status copy(const char *text, const char **to)
{
  const size_t n = text ? strlen(text) + 1 : 0;
  char *own = NULL;

  if (text && !(own = ax_malloc(n))) return AX_ENOMEM;
  if (text) memcpy(own, text, n);
  *to = own;
  return AX_OK;
}

ax_status ax_commit_copy(const ax_commit *c, ax_commit *to)
{
  ax_status st;

  *to = (ax_commit){ .first = c->first, .number = c->number };
  AX_TRY(copy(c->draft, &to->draft));
  AX_TRY(copy(c->path, &to->path));
  AX_TRY(copy(c->facts, &to->facts));
  AX_TRY(copy(c->former, &to->former));
  AX_TRY(copy(c->old, &to->old));
  to->ranks = c->ranks;
out:
  return st;
}

void ax_commit_clear(ax_commit *c)
{
  ax_mfree((void *)c->draft);
  ax_mfree((void *)c->path);
  ax_mfree((void *)c->facts);
  ax_mfree((void *)c->former);
  ax_mfree((void *)c->old);
  *c = (ax_commit){ 0 };
}
