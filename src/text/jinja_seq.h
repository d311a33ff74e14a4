/* jinja_seq.h: the filters that work on sequences: v|name(call). As in the reference, map, select
 * and their kin, unique, batch, slice, items and reverse give generators: read once and always
 * true. */
#ifndef MERE_TEXT_JINJA_SEQ_H
#define MERE_TEXT_JINJA_SEQ_H

#include "text/jinja_call.h"

bool jinja_seq_batch(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_dictsort(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_first(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_groupby(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_items(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_join(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_last(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_length(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_list(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_map(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_max(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_min(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_reject(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_rejectattr(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_reverse(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_select(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_selectattr(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_slice(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_sort(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_sum(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_seq_unique(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);

/* The pairs of d in the order of their keys; mixed: keys of any types. */
bool jinja_sorted_pairs(Jinja *j, const JinjaDict *d, bool mixed, const JinjaPair **out);

#endif
