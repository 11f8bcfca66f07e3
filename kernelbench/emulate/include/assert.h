// A failed assertion ends a thread, not the process. Read again by every <cassert>, as C's own is.
#include_next <assert.h>
#undef assert
#define assert(...) ((__VA_ARGS__) ? (void)0 : kw_assert("assert(" #__VA_ARGS__ ")"))
