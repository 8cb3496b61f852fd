/* signature.h: the parsed signatures of ops.def: what a row's arguments are called, what each one
 * may be, and which place of ax_attrs it fills.  The binding reads arguments by them; the program
 * that names attributes (host/tools/attrs.c) turns them into members of ax_attrs. */
#ifndef AX_SIGNATURE_H
#define AX_SIGNATURE_H

#include "plugin.h"

typedef enum {
  AX_P_TENSOR,
  AX_P_OPERAND,
  AX_P_TENSORS,
  AX_P_DIM,
  AX_P_DIM_PLUS,
  AX_P_DIMS,
  AX_P_POS,
  AX_P_POS_PLUS,
  AX_P_INT,
  AX_P_INT2,
  AX_P_INT3,
  AX_P_INTS,
  AX_P_NUM,
  AX_P_BOOL,
  AX_P_DTYPE,
  AX_P_WORD,
  AX_P_GENERATOR,
  AX_P_ANY
} ax_param_kind;

enum { AX_MAX_PARAMS = 14, AX_MAX_WORDS = 6 };
typedef struct ax_param {
  const char *name;
  uint8_t kind;
  /* the number of the tensor, the place in ax_attrs.numbers (AX_P_NUM), or the first of `places`
   * places in ax_attrs.integers */
  uint8_t slot, places;
  bool optional;
  /* the op's second list: it stands in ax_attrs.integers, behind its length (-1: not given) */
  bool second;
  double value; /* the default, in the core's counting */
  int n_words;
  const char *words[AX_MAX_WORDS];
} ax_param;

typedef struct ax_signature {
  int n;       /* parameters of callers: the first n of `param` */
  int n_row;   /* the first n_row of them are the row's own; the others, after `+`, choose a form */
  int n_all;   /* with those after `|`, which rules and callers in C set */
  int results; /* that users see */
  ax_param param[AX_MAX_PARAMS];
} ax_signature;

/* Parses all signatures at the first call. */
AX_API const ax_signature *ax_signature_of(ax_op op);

/* Parses one into `sig`, which is all zero.  Its names are kept for ever. */
AX_API void ax_signature_parse(ax_signature *sig, const char *text);

#endif
