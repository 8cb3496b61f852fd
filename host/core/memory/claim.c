/* claim.c: what stands between a storage and its use (plugin.h). */
#include "core/core.h"

void ax_claim_put(ax_storage *s, ax_claim *c)
{
  c->next = s->claims;
  c->at = &s->claims;
  if (c->next) c->next->at = &c->next;
  s->claims = c;
}

void ax_claim_take_off(ax_claim *c)
{
  if (!c->at) return;
  *c->at = c->next;
  if (c->next) c->next->at = c->at;
  c->at = NULL;
}

ax_status ax_storage_ready(ax_storage *s, ax_use use, int64_t at)
{
  for (ax_claim *c = s->claims; c;) {
    if (c->kind->uses & use) {
      const ax_status st = c->kind->before(c, at);
      if (st != AX_OK) return st;
      c = s->claims; /* that one is off now, and others may be */
    } else c = c->next;
  }
  return AX_OK;
}

void ax_claims_drop(ax_storage *s)
{
  while (s->claims) {
    ax_claim *const c = s->claims;
    ax_claim_take_off(c);
    if (c->kind->gone) c->kind->gone(c);
  }
}

static _Atomic int64_t missed;
int64_t ax_claims_missed(void) { return missed; }

#ifdef AX_CHECK_CLAIMS
void ax_claims_check(const ax_storage *s)
{
  for (const ax_claim *c = s->claims; c; c = c->next)
    if (c->kind->uses & AX_READ) missed++;
}
#endif
