/* gpus.c: how many GPUs the ranks of this machine can have, found without the driver: the launcher
 * forks, and CUDA does not survive a fork. */

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch.h"
#include "script/script.h"

/* The GPUs that the driver made nodes for: nvidia0, nvidia1, … in /dev.  A container has those
 * that it may use.  ACCEL_DEVICE_NODES names another folder, for tests. */
static int count_nodes(void)
{
  const char *folder = getenv("ACCEL_DEVICE_NODES");
  DIR *dir = opendir(folder ? folder : "/dev");
  struct dirent *e;
  int n = 0;

  if (!dir) return 0;
  while ((e = readdir(dir))) {
    const char *digits = e->d_name + strlen("nvidia");
    if (strncmp(e->d_name, "nvidia", strlen("nvidia")) != 0 || !*digits) continue;
    n += digits[strspn(digits, "0123456789")] == '\0';
  }
  closedir(dir);
  return n;
}

/* How many of `all` GPUs CUDA_VISIBLE_DEVICES leaves.  CUDA takes its entries, numbers or UUIDs, up
 * to the first that is none of the machine's. */
static int count_visible(const char *list, int all)
{
  int n = 0;

  while (*list) {
    while (isspace((unsigned char)*list)) list++;
    if (isdigit((unsigned char)*list) ? atoi(list) >= all
                                      : strncmp(list, "GPU-", 4) != 0 && strncmp(list, "MIG-", 4) != 0)
      break;
    n++;
    list += strcspn(list, ",");
    list += *list == ',';
  }
  return n;
}

int ax_gpus_visible(void)
{
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  char plugin[4200];
  int n;

  snprintf(plugin, sizeof plugin, "%s/libax_cuda.so", ax_interp_plugin_dir());
  if (access(plugin, R_OK) != 0) return 0;
  n = count_nodes();
  return list && n > 0 ? count_visible(list, n) : n;
}
