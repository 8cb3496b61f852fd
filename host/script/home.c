/* home.c: the user's folders, where HOME may be unset. */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "script.h"

const char *ax_home(void)
{
  const char *home = getenv("HOME");
  const struct passwd *user;

  if (home && *home) return home;
  user = getpwuid(getuid());
  return user && user->pw_dir && *user->pw_dir ? user->pw_dir : NULL;
}

bool ax_expand_user(const char *path, char *to, size_t size)
{
  const char *rest = path + strcspn(path, "/"), *home = NULL;
  char name[256];
  const struct passwd *user;
  int n;

  if (*path == '~' && rest == path + 1) home = ax_home();
  else if (*path == '~' && (size_t)(rest - path) < sizeof name) {
    snprintf(name, sizeof name, "%.*s", (int)(rest - path - 1), path + 1);
    user = getpwnam(name);
    home = user ? user->pw_dir : NULL;
  }
  n = home ? snprintf(to, size, "%s%s", home, rest) : snprintf(to, size, "%s", path);
  return n >= 0 && (size_t)n < size;
}

bool ax_hf_home(char *path, size_t size)
{
  const char *hf = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME"), *tail = "";
  int n;

  if (hf && *hf) {
    if (*hf == '~' && (hf[1] == '/' || !hf[1])) {
      tail = hf + 1;
      hf = ax_home();
    }
    n = hf ? snprintf(path, size, "%s%s", hf, tail) : -1;
  } else if (cache && *cache) {
    n = snprintf(path, size, "%s/huggingface", cache);
  } else {
    hf = ax_home();
    n = hf ? snprintf(path, size, "%s/.cache/huggingface", hf) : -1;
  }
  return n >= 0 && (size_t)n < size;
}
