/* Work shared out over the OpenMP threads that PyTorch already keeps.
 *
 * A pool of our own beside PyTorch's would spin against it for the same cores. So the address of GOMP_parallel in the
 * library that PyTorch has loaded is handed in; without it everything runs in the calling thread. Which thread does
 * what never changes a result. */

typedef void (*task)(void *job, int64_t index, int64_t thread);
typedef void (*parallel)(void (*)(void *), void *, unsigned, unsigned);

struct shared {
    task run;
    void *job;
    int64_t tasks, next, joined;
};

static parallel pool;

void use_pool(parallel found) { pool = found; }

static void take_tasks(void *held) {
    struct shared *all = held;
    int64_t thread = __atomic_fetch_add(&all->joined, 1, __ATOMIC_RELAXED), index;
    while ((index = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED)) < all->tasks)
        all->run(all->job, index, thread);
}

/* run(job, 0 .. tasks - 1, thread), thread below `threads`. The team always has PyTorch's size: another would make the
 * pool start and stop threads at every call. */
static void share(task run, void *job, int64_t tasks, int64_t threads) {
    struct shared all = {run, job, tasks, 0, 0};
    if (threads > 1 && tasks > 1 && pool) pool(take_tasks, &all, (unsigned)threads, 0);
    else take_tasks(&all);
}

/* How many rows of `n` elements one task has: all of them where that is too little to share, else no more than each
 * thread's part. */
INLINE int64_t rows_each(int64_t rows, int64_t n, int64_t threads) {
    if (threads < 2 || rows * n < 1 << 16) return rows ? rows : 1;
    return most(1, least((1 << 13) / n + 1, rows / threads));
}
