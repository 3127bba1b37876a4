/* Where a static bcd for amd64 starts: relocates what DT_RELR lists, and goes on to musl's _start.
 *
 * A position-independent program has an address to correct for every pointer in its tables. As DT_RELA each takes
 * 24 bytes of the file, and of memory, since all are read at start; as DT_RELR most take a bit
 * (https://sourceware.org/pipermail/libc-alpha/2022-April/138085.html has the format). The linker packs them, but
 * musl's start file unpacks them only since 1.2.4. DT_RELRSZ is 0 afterwards, so that a newer one does nothing twice.
 *
 * Nothing is relocated when this runs: no global but what the linker places relative to the code may be used, and no
 * function be called.
 */
#include <elf.h>
#include <stddef.h>
#include <stdint.h>

enum { TAG_RELRSZ = 35, TAG_RELR = 36 };

extern Elf64_Dyn _DYNAMIC[] __attribute__((visibility("hidden")));
/* The file's first byte, which stands at address 0 before it is loaded. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));

__asm__(
    ".globl relr_start\n"
    ".hidden relr_start\n"
    ".type relr_start, @function\n"
    "relr_start:\n"
    "\tcall relr_apply\n"
    "\tjmp _start\n");

__attribute__((used, visibility("hidden"))) void relr_apply(void) {
  uintptr_t base = (uintptr_t)__ehdr_start;
  const uint64_t *entry = NULL;
  size_t size = 0;
  for (Elf64_Dyn *tag = _DYNAMIC; tag->d_tag != DT_NULL; tag++) {
    if (tag->d_tag == TAG_RELR) {
      entry = (const uint64_t *)(base + tag->d_un.d_ptr);
    } else if (tag->d_tag == TAG_RELRSZ) {
      size = tag->d_un.d_val;
      tag->d_un.d_val = 0;
    }
  }
  uint64_t *next = NULL;
  for (const uint64_t *end = entry + size / sizeof *entry; entry < end; entry++) {
    if ((*entry & 1) == 0) {
      /* An address. */
      next = (uint64_t *)(base + *entry);
      *next++ += base;
    } else {
      /* Which of the 63 words that follow. */
      uint64_t *word = next;
      for (uint64_t bits = *entry >> 1; bits != 0; bits >>= 1, word++) {
        if (bits & 1) *word += base;
      }
      next += 63;
    }
  }
}
