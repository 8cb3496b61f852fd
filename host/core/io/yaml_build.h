/* yaml_build.h: a tree of YAML under construction, between yaml.c (events) and yaml_map.c
 * (maps). */
#ifndef AX_YAML_BUILD_H
#define AX_YAML_BUILD_H

#include "yaml_tree.h"

typedef struct ax_yaml_level {
  ax_yaml_node *node;
  ax_yaml_node *last; /* entry so far */
  int anchor;         /* its number, or -1: it may be referred to once it is closed */
} ax_yaml_level;

typedef struct ax_yaml_anchor {
  char name[64];
  const ax_yaml_node *node; /* NULL while it is open */
} ax_yaml_anchor;

typedef struct ax_yaml_builder {
  const char *name;
  bool json;
  ax_yaml *tree;
  ax_yaml_level open[AX_YAML_DEPTH];
  int depth, nodes, n_anchors;
  int64_t compared; /* keys, for << */
  ax_yaml_anchor anchors[AX_YAML_ANCHORS];
  int line; /* of the event */
} ax_yaml_builder;

/* EIO, with the text's name and the line. */
ax_status ax_yaml_fail(const ax_yaml_builder *b, int line, const char *fmt, ...) AX_PRINTF(3, 4);
ax_status ax_yaml_no_memory(const ax_yaml_builder *b);
ax_status ax_yaml_node_new(ax_yaml_builder *b, ax_yaml_kind kind, ax_yaml_node **out);
/* Appends to the innermost list or map, or makes it the root. */
void ax_yaml_append(ax_yaml_builder *b, ax_yaml_node *n);

/* Ends the innermost map: checks its keys, and gives it the entries of other maps (<<). */
ax_status ax_yaml_close_map(ax_yaml_builder *b, ax_yaml_node *map);

#endif
