/* osmem.h: what the operating system says about memory. 0 where it does not say. Any thread; no
 * memory of its own. */
#ifndef MERE_ENGINE_OSMEM_H
#define MERE_ENGINE_OSMEM_H

#include "base/attr.h"

/* Bytes that can be taken without swapping: MemAvailable, or less where a control group (v1 or v2)
 * limits the process. Pages of files that are only cached count as available. */
uint64_t osmem_available(void);
uint64_t osmem_total(void); /* MemTotal */
uint64_t osmem_anon(void);  /* RssAnon of this process: what it holds that no file backs */

#endif
