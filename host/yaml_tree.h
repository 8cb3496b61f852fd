/* yaml_tree.h: YAML 1.1 and JSON texts as trees of nodes.
 *
 * libyaml splits the text into events; it is opened at the first text, because most runs have no
 * configuration file.  What plain words mean is PyYAML's reading of YAML 1.1: unquoted no, off and
 * on are booleans, 010 is 8, 1_000 is 1000, 1:30 is 90.  Dates stay texts.  Nothing is executed: a
 * tag other than those of the kinds below is an error. */
#ifndef AX_YAML_TREE_H
#define AX_YAML_TREE_H

#include <stdbool.h>
#include <stddef.h>

#include "ax.h"

#define AX_YAML_SIZE (4 << 20)  /* bytes of a text */
#define AX_YAML_NODES (1 << 18) /* of a tree, those that << copies included */
#define AX_YAML_DEPTH 64        /* lists and maps inside each other */
#define AX_YAML_ANCHORS 256
#define AX_YAML_COMPARED 10000000 /* keys that << compares */

typedef enum {
  AX_YAML_NULL,
  AX_YAML_BOOL,
  AX_YAML_INT,
  AX_YAML_FLOAT,
  AX_YAML_TEXT,
  AX_YAML_LIST,
  AX_YAML_MAP
} ax_yaml_kind;

typedef struct ax_yaml_node ax_yaml_node;
struct ax_yaml_node {
  ax_yaml_kind kind;
  bool truth;                /* of BOOL */
  bool anchored;             /* an alias may refer to it, or it is one */
  bool plain;                /* a text without quotes and tag */
  int line;                  /* from 1 */
  double number;             /* of INT and FLOAT */
  const char *text;          /* of scalars: as written, without quotes and escapes; ends in a NUL */
  size_t size;               /* of text; it may hold NULs too */
  int count;                 /* entries of LIST and MAP */
  const ax_yaml_node *first; /* of LIST; of MAP: key, value, key, value ... */
  const ax_yaml_node *next;
  const ax_yaml_node *origin; /* what an alias refers to; elsewhere the node itself */
};

typedef struct ax_yaml ax_yaml; /* a tree; it owns its nodes and texts */

/* Reads one document.  `name` begins messages, which give the line: "config.yaml:3: ...".  json:
 * words that JSON lacks are errors, and 1e5 is a number.  A map has each key once; keys are scalars
 * but null.  *out: free it with ax_yaml_free; NULL on failure.  EIO when the text breaks the format
 * or a limit above; ENOIMPL without libyaml. */
ax_status ax_yaml_parse(const char *name, const char *text, size_t size, bool json, ax_yaml **out);
void ax_yaml_free(ax_yaml *y); /* NULL is fine */
const ax_yaml_node *ax_yaml_root(const ax_yaml *y);
/* What PyYAML takes the unquoted word for: TEXT when it is nothing else. */
ax_yaml_kind ax_yaml_resolve(const char *text, size_t size, bool *truth, double *number);
/* "a number", "a list" */
const char *ax_yaml_kind_name(ax_yaml_kind kind);

#endif
