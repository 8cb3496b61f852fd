/* yaml_map.c: the maps of YAML trees: keys, which are there once, and the entries of other maps. */
#include "yaml_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_keys(const void *left, const void *right)
{
  const ax_yaml_node *a = *(const ax_yaml_node *const *)left, *b = *(const ax_yaml_node *const *)right;
  const bool numbers = a->kind == AX_YAML_INT || a->kind == AX_YAML_FLOAT;
  const int ka = numbers ? AX_YAML_INT : a->kind, kb = b->kind == AX_YAML_FLOAT ? AX_YAML_INT : b->kind;

  if (ka != kb) return ka < kb ? -1 : 1;
  if (ka == AX_YAML_INT) return (a->number > b->number) - (a->number < b->number);
  if (ka == AX_YAML_BOOL) return (int)a->truth - (int)b->truth;
  if (a->size != b->size) return a->size < b->size ? -1 : 1;
  return a->size ? memcmp(a->text, b->text, a->size) : 0; /* a map as a key has no text */
}

/* The keys of a map, sorted; NULL without memory. */
static const ax_yaml_node **sorted_keys(const ax_yaml_node *map)
{
  const ax_yaml_node **keys = malloc((size_t)(map->count / 2 + 1) * sizeof *keys);
  int n = 0;

  if (!keys) return NULL;
  for (const ax_yaml_node *k = map->first; k; k = k->next->next) keys[n++] = k;
  qsort(keys, (size_t)n, sizeof *keys, compare_keys);
  return keys;
}

static ax_status check_keys(const ax_yaml_builder *b, const ax_yaml_node *map,
                            const ax_yaml_node *const *keys)
{
  const int n = map->count / 2;

  for (const ax_yaml_node *k = map->first; k; k = k->next->next)
    if (k->kind == AX_YAML_LIST || k->kind == AX_YAML_MAP || k->kind == AX_YAML_NULL ||
        (k->kind == AX_YAML_FLOAT && isnan(k->number)))
      return ax_yaml_fail(b, k->line, "a key is %s; expected a text, a number, true or false",
                          k->kind == AX_YAML_FLOAT ? "not a number" : ax_yaml_kind_name(k->kind));
  for (int i = 0; i + 1 < n; i++)
    if (compare_keys(&keys[i], &keys[i + 1]) == 0) {
      const int one = keys[i]->line, two = keys[i + 1]->line;
      return ax_yaml_fail(b, one > two ? one : two, "the key %.100s is there twice (line %d)", keys[i]->text,
                          one > two ? two : one);
    }
  return AX_OK;
}

static bool is_merge(const ax_yaml_node *k)
{
  return k->plain && k->kind == AX_YAML_TEXT && k->size == 2 && memcmp(k->text, "<<", 2) == 0;
}

static const ax_yaml_node *find_key(const ax_yaml_node *map, const ax_yaml_node *key)
{
  for (const ax_yaml_node *k = map->first; k; k = k->next->next)
    if (compare_keys(&k, &key) == 0) return k;
  return NULL;
}

/* Appends to the innermost map what `from` has beyond it. */
static ax_status merge_map(ax_yaml_builder *b, const ax_yaml_node *from, const ax_yaml_node *map)
{
  for (const ax_yaml_node *k = from->first; k; k = k->next->next) {
    ax_yaml_node *key, *value;
    ax_status st;
    if ((b->compared += map->count / 2) > AX_YAML_COMPARED)
      return ax_yaml_fail(b, k->line, "<<: too many entries");
    if (find_key(map, k)) continue;
    if ((st = ax_yaml_node_new(b, AX_YAML_NULL, &key)) != AX_OK ||
        (st = ax_yaml_node_new(b, AX_YAML_NULL, &value)) != AX_OK)
      return st;
    *key = *k;
    *value = *k->next;
    key->next = value->next = NULL;
    ax_yaml_append(b, key);
    ax_yaml_append(b, value);
  }
  return AX_OK;
}

/* `<<: *other` gives a map the entries of other maps that it has not itself. */
static ax_status merge(ax_yaml_builder *b, ax_yaml_node *map)
{
  const ax_yaml_node *value = NULL;
  ax_yaml_node *k, *before = NULL;
  ax_status st = AX_OK;

  if (b->json) return AX_OK;
  for (k = (ax_yaml_node *)map->first; k && !is_merge(k); k = (ax_yaml_node *)k->next->next)
    before = (ax_yaml_node *)k->next;
  if (!k) return AX_OK;
  value = k->next;
  if (before) before->next = value->next;
  else map->first = value->next;
  if (b->open[b->depth - 1].last == value) b->open[b->depth - 1].last = before;
  map->count -= 2;
  if (value->kind == AX_YAML_MAP) return merge_map(b, value, map);
  if (value->kind != AX_YAML_LIST)
    return ax_yaml_fail(b, k->line, "<<: expected a map or a list of maps, got %s",
                        ax_yaml_kind_name(value->kind));
  for (const ax_yaml_node *one = value->first; one && st == AX_OK; one = one->next)
    st = one->kind == AX_YAML_MAP
             ? merge_map(b, one, map)
             : ax_yaml_fail(b, one->line, "<<: expected maps, got %s", ax_yaml_kind_name(one->kind));
  return st;
}

ax_status ax_yaml_close_map(ax_yaml_builder *b, ax_yaml_node *map)
{
  const ax_yaml_node **keys = sorted_keys(map);
  ax_status st;

  if (!keys) return ax_yaml_no_memory(b);
  st = check_keys(b, map, keys);
  free(keys);
  return st == AX_OK ? merge(b, map) : st;
}
