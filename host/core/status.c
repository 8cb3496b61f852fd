/* Status texts and the thread's message. */
#include "ax.h"

#include <stdarg.h>
#include <stdio.h>

/* Long enough for two shapes of eight dims, an op and a path, or a list of what is live; longer
 * messages are cut, never overrun. */
static _Thread_local char message[2048];
static _Thread_local ax_status status;

/* Messages quote files, which may hold what moves a terminal's cursor, or worse. */
void ax_text_clean(char *text)
{
  for (unsigned char *c = (unsigned char *)text; *c; c++)
    if ((*c < ' ' && *c != '\n' && *c != '\t') || *c == 127) *c = '?';
}

ax_status ax_fail(ax_status st, const char *fmt, ...)
{
  char text[sizeof message]; /* the arguments may point into `message` (an error that quotes another one) */
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  ax_text_clean(text);
  snprintf(message, sizeof message, "%s", text);
  return status = st;
}

const char *ax_last_error(void) { return message; }

ax_status ax_last_status(void) { return status; }

const char *ax_status_text(ax_status st)
{
  static const char *const texts[] = {
#define STATUS(ID, text) [AX_##ID] = text,
#include "core/status.def"
#undef STATUS
  };
  return (size_t)st < sizeof texts / sizeof *texts ? texts[st] : "unknown status";
}
