/* yaml.c: trees of libyaml's events; see yaml_tree.h. */
#include "yaml_build.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* ---- libyaml */

static struct {
  int (*initialize)(yaml_parser_t *);
  void (*set_input)(yaml_parser_t *, const unsigned char *, size_t);
  int (*parse)(yaml_parser_t *, yaml_event_t *);
  void (*event_delete)(yaml_event_t *);
  void (*parser_delete)(yaml_parser_t *);
  bool found;
} lib;

static void find_library(void)
{
  static const char *const names[] = { "libyaml-0.so.2", "libyaml.so" };
  void *l = NULL;

  for (size_t i = 0; i < sizeof names / sizeof *names && !l; i++) l = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!l) return;
#define FIND(member, name) \
  if (!(*(void **)&lib.member = dlsym(l, name))) return
  FIND(initialize, "yaml_parser_initialize");
  FIND(set_input, "yaml_parser_set_input_string");
  FIND(parse, "yaml_parser_parse");
  FIND(event_delete, "yaml_event_delete");
  FIND(parser_delete, "yaml_parser_delete");
#undef FIND
  lib.found = true;
}

/* ---- the tree's memory */

#define BLOCK (32 << 10)

typedef struct block {
  struct block *next;
  size_t used, size;
  _Alignas(16) char bytes[];
} block;

struct ax_yaml {
  block *blocks;
  const ax_yaml_node *root;
};

static void *take(ax_yaml *y, size_t size)
{
  block *b = y->blocks;

  size = (size + 15) & ~(size_t)15;
  if (!b || b->size - b->used < size) {
    const size_t room = size > BLOCK ? size : BLOCK;
    if (!(b = malloc(sizeof *b + room))) return NULL;
    *b = (block){ .next = y->blocks, .size = room };
    y->blocks = b;
  }
  b->used += size;
  return b->bytes + b->used - size;
}

void ax_yaml_free(ax_yaml *y)
{
  if (!y) return;
  for (block *b = y->blocks, *next; b; b = next) {
    next = b->next;
    free(b);
  }
  free(y);
}

const ax_yaml_node *ax_yaml_root(const ax_yaml *y) { return y->root; }

/* ---- building */

ax_status ax_yaml_fail(const ax_yaml_builder *b, int line, const char *fmt, ...)
{
  char text[512];
  va_list ap;

  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return ax_fail(AX_EIO, "%s:%d: %s", b->name, line, text);
}

ax_status ax_yaml_no_memory(const ax_yaml_builder *b)
{
  return ax_fail(AX_ENOMEM, "%s: no memory to read it", b->name);
}

ax_status ax_yaml_node_new(ax_yaml_builder *b, ax_yaml_kind kind, ax_yaml_node **out)
{
  ax_yaml_node *n;

  if (b->nodes++ == AX_YAML_NODES) return ax_yaml_fail(b, b->line, "more than %d values", AX_YAML_NODES);
  if (!(n = take(b->tree, sizeof *n))) return ax_yaml_no_memory(b);
  *n = (ax_yaml_node){ .kind = kind, .line = b->line, .origin = n };
  *out = n;
  return AX_OK;
}

void ax_yaml_append(ax_yaml_builder *b, ax_yaml_node *n)
{
  ax_yaml_level *l;

  if (b->depth == 0) {
    b->tree->root = n;
    return;
  }
  l = &b->open[b->depth - 1];
  if (l->last) l->last->next = n;
  else l->node->first = n;
  l->last = n;
  l->node->count++;
}

static int find_anchor(const ax_yaml_builder *b, const char *name)
{
  for (int i = b->n_anchors - 1; i >= 0; i--)
    if (strcmp(b->anchors[i].name, name) == 0) return i;
  return -1;
}

/* *out: the anchor's number; -1 where the value has none. */
static ax_status add_anchor(ax_yaml_builder *b, const yaml_char_t *text, int *out)
{
  const char *name = (const char *)text;
  int i;

  *out = -1;
  if (!name) return AX_OK;
  if (strlen(name) >= sizeof b->anchors[0].name)
    return ax_yaml_fail(b, b->line, "an anchor's name of more than %zu letters",
                        sizeof b->anchors[0].name - 1);
  if ((i = find_anchor(b, name)) < 0) { /* a second anchor of a name takes its place */
    if (b->n_anchors == AX_YAML_ANCHORS)
      return ax_yaml_fail(b, b->line, "more than %d anchors", AX_YAML_ANCHORS);
    i = b->n_anchors++;
    strcpy(b->anchors[i].name, name);
  }
  b->anchors[i].node = NULL;
  *out = i;
  return AX_OK;
}

static void settle_anchor(ax_yaml_builder *b, int i, ax_yaml_node *n)
{
  if (i < 0) return;
  n->anchored = true;
  b->anchors[i].node = n;
}

static ax_status add_alias(ax_yaml_builder *b, const char *name)
{
  const int i = find_anchor(b, name);
  ax_yaml_node *n;
  ax_status st;

  if (i < 0) return ax_yaml_fail(b, b->line, "*%s: there is no anchor &%s before it", name, name);
  if (!b->anchors[i].node)
    return ax_yaml_fail(b, b->line, "*%s inside of &%s: a value cannot contain itself", name, name);
  if ((st = ax_yaml_node_new(b, AX_YAML_NULL, &n)) != AX_OK) return st;
  *n = *b->anchors[i].node;
  n->next = NULL;
  n->line = b->line;
  ax_yaml_append(b, n);
  return AX_OK;
}

/* The kind that a tag of YAML itself gives; -1: there is no tag; -2: another tag. */
static int tagged_kind(const yaml_char_t *tag)
{
  static const struct {
    const char *tag;
    ax_yaml_kind kind;
  } tags[] = { { "null", AX_YAML_NULL },   { "bool", AX_YAML_BOOL }, { "int", AX_YAML_INT },
               { "float", AX_YAML_FLOAT }, { "str", AX_YAML_TEXT },  { "seq", AX_YAML_LIST },
               { "map", AX_YAML_MAP } };
  static const char prefix[] = "tag:yaml.org,2002:";
  const char *text = (const char *)tag;

  if (!text || strcmp(text, "!") == 0) return -1;
  if (strncmp(text, prefix, sizeof prefix - 1) == 0)
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
      if (strcmp(text + sizeof prefix - 1, tags[i].tag) == 0) return (int)tags[i].kind;
  return -2;
}

static ax_status bad_tag(const ax_yaml_builder *b, const yaml_char_t *tag)
{
  return ax_yaml_fail(b, b->line,
                      "the tag %.200s: tags other than those of texts, numbers, lists and maps are refused",
                      (const char *)tag);
}

/* The number as JSON has them: -12.5e3. */
static bool json_number(const char *text, double *out)
{
  const char *at = text + (*text == '-');
  char *end;

  if (*at < '0' || *at > '9' || (*at == '0' && at[1] >= '0' && at[1] <= '9') ||
      text[strspn(text, "0123456789+-.eE")])
    return false;
  *out = strtod(text, &end);
  return !*end && end[-1] != '.';
}

static ax_status json_word(const ax_yaml_builder *b, ax_yaml_node *n)
{
  const char *text = n->text;

  if (strcmp(text, "null") == 0) n->kind = AX_YAML_NULL;
  else if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) {
    n->kind = AX_YAML_BOOL;
    n->truth = *text == 't';
  } else if (json_number(text, &n->number)) {
    n->kind = strpbrk(text, ".eE") ? AX_YAML_FLOAT : AX_YAML_INT;
  } else
    return ax_yaml_fail(b, n->line, "'%.60s': JSON has texts in double quotes, numbers, true, false and null",
                        text);
  return AX_OK;
}

static ax_status resolve(const ax_yaml_builder *b, ax_yaml_node *n, const yaml_event_t *e)
{
  const int said = tagged_kind(e->data.scalar.tag);

  if (said == -2 || said == AX_YAML_LIST || said == AX_YAML_MAP) return bad_tag(b, e->data.scalar.tag);
  n->kind = AX_YAML_TEXT;
  if (said == AX_YAML_TEXT) return AX_OK;
  if (said < 0 && e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return AX_OK;
  n->plain = said < 0;
  if (b->json) return json_word(b, n);
  n->kind = ax_yaml_resolve(n->text, n->size, &n->truth, &n->number);
  if (said == AX_YAML_FLOAT && n->kind == AX_YAML_INT) n->kind = AX_YAML_FLOAT;
  if (said >= 0 && (int)n->kind != said)
    return ax_yaml_fail(b, b->line, "'%.60s' is not %s, as its tag says", n->text,
                        ax_yaml_kind_name((ax_yaml_kind)said));
  return AX_OK;
}

static ax_status add_scalar(ax_yaml_builder *b, const yaml_event_t *e)
{
  const size_t size = e->data.scalar.length;
  ax_yaml_node *n;
  ax_status st;
  char *text;
  int at;

  if ((st = ax_yaml_node_new(b, AX_YAML_TEXT, &n)) != AX_OK ||
      (st = add_anchor(b, e->data.scalar.anchor, &at)) != AX_OK)
    return st;
  if (!(text = take(b->tree, size + 1))) return ax_yaml_no_memory(b);
  memcpy(text, e->data.scalar.value, size);
  text[size] = '\0';
  n->text = text;
  n->size = size;
  if ((st = resolve(b, n, e)) != AX_OK) return st;
  settle_anchor(b, at, n);
  ax_yaml_append(b, n);
  return AX_OK;
}

static ax_status open_collection(ax_yaml_builder *b, ax_yaml_kind kind, const yaml_char_t *tag,
                                 const yaml_char_t *name)
{
  const int said = tagged_kind(tag);
  ax_yaml_node *n;
  ax_status st;
  int at;

  if (said != -1 && said != (int)kind) return bad_tag(b, tag);
  if (b->depth == AX_YAML_DEPTH)
    return ax_yaml_fail(b, b->line, "lists and maps inside each other more than %d times", AX_YAML_DEPTH);
  if ((st = ax_yaml_node_new(b, kind, &n)) != AX_OK || (st = add_anchor(b, name, &at)) != AX_OK) return st;
  ax_yaml_append(b, n);
  b->open[b->depth++] = (ax_yaml_level){ .node = n, .anchor = at };
  return AX_OK;
}

static ax_status close_collection(ax_yaml_builder *b)
{
  ax_yaml_level *l = &b->open[b->depth - 1];
  ax_yaml_node *n = l->node;
  const int at = l->anchor;
  ax_status st = AX_OK;

  if (n->kind == AX_YAML_MAP) st = ax_yaml_close_map(b, n);
  b->depth--;
  if (st == AX_OK) settle_anchor(b, at, n);
  return st;
}

/* ---- events */

static ax_status take_event(ax_yaml_builder *b, const yaml_event_t *e, int *documents)
{
  b->line = (int)e->start_mark.line + 1;
  switch (e->type) {
  case YAML_DOCUMENT_START_EVENT:
    return ++*documents == 1 ? AX_OK : ax_yaml_fail(b, b->line, "a second document; expected one");
  case YAML_ALIAS_EVENT: return add_alias(b, (const char *)e->data.alias.anchor);
  case YAML_SCALAR_EVENT: return add_scalar(b, e);
  case YAML_SEQUENCE_START_EVENT:
    return open_collection(b, AX_YAML_LIST, e->data.sequence_start.tag, e->data.sequence_start.anchor);
  case YAML_MAPPING_START_EVENT:
    return open_collection(b, AX_YAML_MAP, e->data.mapping_start.tag, e->data.mapping_start.anchor);
  case YAML_SEQUENCE_END_EVENT:
  case YAML_MAPPING_END_EVENT: return close_collection(b);
  default: return AX_OK;
  }
}

static ax_status wrong_text(const ax_yaml_builder *b, const yaml_parser_t *p)
{
  if (p->error == YAML_MEMORY_ERROR) return ax_yaml_no_memory(b);
  return ax_yaml_fail(b, (int)p->problem_mark.line + 1, "%s%s%s", p->problem ? p->problem : "not a YAML text",
                      p->context ? ", " : "", p->context ? p->context : "");
}

static ax_status build(ax_yaml_builder *b, yaml_parser_t *p)
{
  int documents = 0;

  for (;;) {
    yaml_event_t e;
    ax_status st;
    bool ended;
    if (!lib.parse(p, &e)) return wrong_text(b, p);
    ended = e.type == YAML_STREAM_END_EVENT || e.type == YAML_NO_EVENT;
    st = take_event(b, &e, &documents);
    lib.event_delete(&e);
    if (st != AX_OK) return st;
    if (ended) break;
  }
  if (!b->tree->root) { /* an empty text is null */
    ax_yaml_node *n;
    b->line = 1;
    if (ax_yaml_node_new(b, AX_YAML_NULL, &n) != AX_OK) return ax_yaml_no_memory(b);
    b->tree->root = n;
  }
  return AX_OK;
}

/* JSON writes letters beyond the first 65536 as two halves, which YAML lacks: \ud83d\ude00 becomes
 * \U0001f600, which is shorter.  Works in place and returns the new length. */
static size_t join_surrogates(char *text, size_t size)
{
  size_t to = 0;

  for (size_t from = 0; from < size; from++, to++) {
    unsigned high, low;
    text[to] = text[from];
    if (text[from] != '\\') continue;
    if (size - from >= 12 && sscanf(text + from, "\\u%4x\\u%4x", &high, &low) == 2 && high >> 10 == 0x36 &&
        low >> 10 == 0x37) {
      char wide[12];
      snprintf(wide, sizeof wide, "\\U%08x", 0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF));
      memcpy(text + to, wide, 10);
      from += 11;
      to += 9;
    } else if (from + 1 < size) text[++to] = text[++from]; /* an escaped backslash begins no escape */
  }
  return to;
}

ax_status ax_yaml_parse(const char *name, const char *text, size_t size, bool json, ax_yaml **out)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  yaml_parser_t parser;
  ax_yaml_builder *b = NULL;
  char *joined = NULL;
  ax_status st = AX_ENOMEM;

  *out = NULL;
  pthread_once(&once, find_library);
  if (!lib.found)
    return ax_fail(AX_ENOIMPL, "%s: reading it needs libyaml, which is not here (Debian's libyaml-0-2)",
                   name);
  if (size > AX_YAML_SIZE)
    return ax_fail(AX_EIO, "%s: %zu bytes; expected at most %d", name, size, AX_YAML_SIZE);
  if (!lib.initialize(&parser)) return ax_fail(AX_ENOMEM, "%s: no memory to read it", name);
  if (!(b = calloc(1, sizeof *b)) || !(b->tree = calloc(1, sizeof *b->tree)) || !(joined = malloc(size + 1)))
    goto out;
  memcpy(joined, text, size);
  joined[size] = '\0';
  if (json) size = join_surrogates(joined, size);
  b->name = name;
  b->json = json;
  lib.set_input(&parser, (const unsigned char *)joined, size);
  st = build(b, &parser);
out:
  if (st == AX_ENOMEM) ax_fail(st, "%s: no memory to read it", name);
  lib.parser_delete(&parser);
  if (st == AX_OK) *out = b->tree;
  else if (b) ax_yaml_free(b->tree);
  free(joined);
  free(b);
  return st;
}
