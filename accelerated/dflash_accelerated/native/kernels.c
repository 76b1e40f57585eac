/* The CPU kernels of the engine, one translation unit: any C11 compiler with vector extensions (GCC 12, Clang). */
#include "vectors.h"
#include "threads.h"
#include "rows.h"
#include "attention.h"
#include "attend.h"
#include "stores.h"
#include "ranking.h"
#include "walk.h"
