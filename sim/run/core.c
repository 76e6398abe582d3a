/* The compiled core: whole runs of `continuous` and of policies with lanes, which sim.run.compiled takes.

Takes numbers and arrays, knows no files. Every operation on a double is the one of the Python code, in its order, so that
results are equal to the last bit (build without contraction into fused multiply-adds). Settings, requests and steps come
as the structs of these files: sim.run.compiled has the same fields, and has checked that no loop here goes beyond an
array or on for ever.

core_costs.h    what a pass costs
core_device.h   streams that share a device
core_lanes.h    pd, pdv, unified, baseline
here            requests, `continuous`, and the door

Not here: what a run that is taken must be like (sim.run.compiled), what is in a slot (sim.costs.forms). */

#include "core_costs.h"

typedef struct {
    double arrival_s, known_s, queued_s, scheduled_s, first_s, last_s;
    Count first_round;
    int32_t prompt, output, blocks, prefilled, goal, num_preemptions, num_rounds, num_accepted, num_drafted;
    int8_t needs_catch_up, is_measured;
} Request;

/* Its seconds in the frontend. */
static double delay_of(const Host *host, const Request *one) { return host->frontend_s + host->frontend_token_s * one->prompt; }

/* A list that grows. */
typedef struct { void *at; Count count, most; } List;

/* No memory is left: an exception is set, and loops end. */
static void run_out(Costs *costs) { if (!costs->has_failed) PyErr_NoMemory(), costs->has_failed = 1; }

/* Room for one more item of `size` bytes; NULL where memory is out. */
static void *add(Costs *costs, List *list, size_t size) {
    if (list->count == list->most) {
        Count most = list->most ? 2 * list->most : 1024;
        void *at = PyMem_Realloc(list->at, most * size);
        if (at == NULL) { run_out(costs); return NULL; }
        list->at = at, list->most = most;
    }
    return (char *)list->at + size * list->count++;
}

/* A quantity over time (sim.engine.time_series.Gauge), and what it changed by, where that is kept. */
typedef struct { double at_s; Count by; } Change;
typedef struct { double integral, since_s; Count value, peak; int keeps; List changes; } Gauge;
enum { QUEUE, HELD, NUM_GAUGES };

static void change(Costs *costs, Gauge *gauge, Count by, double now_s) {
    if (now_s > gauge->since_s) {
        gauge->integral += gauge->value * (now_s - gauge->since_s);
        gauge->since_s = now_s, gauge->peak = more(gauge->peak, gauge->value);
    }
    gauge->value += by;
    if (!gauge->keeps) return;
    Change *last = add(costs, &gauge->changes, sizeof(Change));
    if (last != NULL) *last = (Change){now_s, by};
}

/* What a run summed up and its gauges show, and what these changed by. */
static PyObject *accounts_of(void *totals, Py_ssize_t size, Gauge *gauges) {
    Gauge *q = &gauges[QUEUE], *h = &gauges[HELD];
    Py_ssize_t shown = offsetof(Gauge, keeps), each = sizeof(Change);
    return Py_BuildValue("y#y#y#y#y#", totals, size, q, shown, h, shown, q->keeps ? q->changes.at : "", q->changes.count * each,
                         h->keeps ? h->changes.at : "", h->changes.count * each);
}

/* Gaps of requests whose tokens came together. */
typedef struct { double gap_s; Count count; } Gap;
enum { GAPS_AT_ONCE = 1 << 15 };

static void tell_gaps(Costs *costs, List *gaps) {
    if (costs->has_failed || !gaps->count) return;
    PyObject *none = PyObject_CallFunction(costs->hear, "y#", gaps->at, (Py_ssize_t)(gaps->count * sizeof(Gap)));
    costs->has_failed = none == NULL, gaps->count = 0;
    Py_XDECREF(none);
}

static void add_gap(Costs *costs, List *gaps, double gap_s, Count count) {
    if (gaps->count == GAPS_AT_ONCE) tell_gaps(costs, gaps);
    Gap *gap = add(costs, gaps, sizeof(Gap));
    if (gap != NULL) *gap = (Gap){gap_s, count};
}

/* Requests of a batch that had their last tokens together, as most have. */
typedef struct { double since_s; Count count; } Alike;

static void add_alike(Costs *costs, List *gaps, Alike *alike, double now_s) {
    if (alike->count) add_gap(costs, gaps, now_s - alike->since_s, alike->count), alike->count = 0;
}

static void note_gap(Costs *costs, List *gaps, Alike *alike, double last_s, double now_s) {
    if (last_s != alike->since_s) add_alike(costs, gaps, alike, now_s);
    alike->since_s = last_s, alike->count++;
}

#include "core_device.h"
#include "core_lanes.h"

/* -- continuous batching: what sim.policies.continuous does row by row, on a device with one stream */

typedef struct {
    Count draft_tokens, max_seqs, max_tokens, max_concurrency, slots_per_request, padded_tokens, num_blocks;
    Count is_async, no_evict, whole_prompts, reads_features, looks_up;
    Count longest_chunk, spares_lone_prompt, lookahead, seat_lookahead, max_len, block_size, kept_blocks;
    Count is_caching, drops_cached_block, seats_first_chunk, caches_results, reuses_blank_first;
    Count receive_interval, batch_wait_steps, balance_steps;
    Count retracts, drafts_before_verify, max_batched_tokens, max_answer_tokens;   /* SGLang */
    Count leaves_at_once, spare_tokens, kept_tokens, decode_interval, min_free_seats;
    Count is_part;             /* of several replicas, whose changes are added up */
    Count hashed_ahead, skips_unused_drafts, prefill_interval, counts_prompt_steps, defers_last_token;   /* vLLM */
    double batch_wait_tokens, balance_queue, initial_ratio, min_ratio, decay_steps, retract_steps;
    Host host;
} Settings;

/* A request that is served. Its blocks: how many its table has, and how many of these, its first, have a key. */
typedef struct {
    double last_s;
    int32_t emitted, output, drafted, in_flight, prompt, prefilled, goal, kv, blocks, cached;
    int8_t is_preempted, is_measured, has_left_named, is_lost, needs_catch_up;
    int32_t num_rounds, num_accepted, num_drafted, num_named;
    int32_t next, round_at;     /* the next of `rounds`, and how many tokens are out where it begins; -1: nowhere */
    const int8_t *rounds;
    int8_t *own_rounds;
    Count freed_at, num_freed;  /* where the blocks with a key that it gave back are in the line of free ones */
} Row;

/* A step: its rows, with tokens of each, and the chunks of prompts. */
typedef struct { Count *rows, *row_tokens, num_rows, tokens, context; Chunks chunks; double at_s; int has_begun, skips_drafts; } Plan;
typedef struct { Count from, to; } Hole;

typedef struct {
    Settings set;
    Costs costs;
    const int8_t *lengths;     /* of drafts, by the requests of a step; one alone: all drafts are as long */
    Count num_lengths, draft_tokens; /* and of the step under way */
    PyObject *redraw;          /* rounds of a request from a token on, where drafts were cut or tokens came without */
    Request *requests;         /* in order of arrival */
    const int8_t *accepted;
    Row *rows;                 /* of those who were seen and have not finished, and some between, in a ring */
    Count row_mask, first_row;
    Count num_requests, num_come, num_queued, num_seen, num_finished;
    double entered_s;          /* when the last of those who have come is in the queue */
    Count *running, num_running, running_blocks;   /* seated, oldest first; blocks for their whole lives */
    Count *queue, first_waiting, num_waiting, queue_mask; /* who waits and was seen, in a ring */
    /* Free blocks: those without a key that are taken first, then a line, from head to tail, with holes. */
    Count num_free, num_blank, line_head, line_tail;
    List holes;                /* in order */
    Gauge gauges[NUM_GAUGES];
    double now_s, issuer_free_s, device_free_s, busy_since_s; /* the device has works without a break since then */
    Totals totals;
    Plan plans[2];
    List gaps;
    int is_beyond;             /* something that only Python knows */
    Count steps_unseen, steps_held_back, steps_balanced;
    int holds_back;            /* prompts wait for others to come */
    Count num_plans, num_steps, last_prompt_step; /* that carries something, or a prompt */
    int has_left_waiting;      /* somebody, behind the last step that could carry prompts */
    /* SGLang: the rows of the last step of rows, and those of prompts that have ended since; that step's prompts. */
    Count *batch, num_batch, *ended, num_ended;
    double ratio;
    int is_full, has_cut;
    Count num_deferred;        /* plans for which prompts still wait */
} Run;

/* Submit a work, prepared for `ahead_s`; returns when it ends on the device. */
static double submit(Run *run, int model, const Pass *p, double ahead_s) {
    double prepare_s;
    Cost cost = work_cost(&run->costs, model, p, ahead_s, &prepare_s);
    double prepared_s = larger(run->issuer_free_s, run->now_s) + prepare_s;
    double start_s = larger(run->device_free_s, prepared_s);
    int goes_on = run->now_s < run->device_free_s && prepared_s <= run->device_free_s;
    if (!goes_on) run->totals.busy_s += run->device_free_s - run->busy_since_s, run->busy_since_s = start_s;
    run->issuer_free_s = prepared_s + cost.launch_s;
    run->device_free_s = larger(start_s + cost.device_s, run->issuer_free_s + cost.tail_s);
    Usage *usage = &run->totals.usage[0][model];
    usage->num_works++;
    usage->device_s += run->device_free_s - start_s;
    usage->tokens += tokens_of(p);
    return run->device_free_s;
}

/* -- a request on its way */

static Row *row_of(const Run *run, Count i) { return &run->rows[i & run->row_mask]; }

static int is_finished(const Row *row) { return row->emitted >= row->output; }

/* It has its last token with the step under way, whatever that accepts. */
static int must_end(const Row *row) { return row->in_flight && row->emitted + 1 >= row->output; }

/* Tokens of its prompt, and of what it had before it was preempted, that no chunk has yet. */
static Count missing_of(const Row *row) { return row->goal - row->prefilled - row->in_flight; }

/* Its tokens in the target's KV between rounds. */
static Count context_of_row(const Row *row) { return row->prefilled + more(0, row->emitted - 1 - (row->goal - row->prompt)); }

/* Its tokens so far: what is to be computed, once more if it was preempted, before it goes on. */
static Count tokens_so_far(const Row *row) { return row->prompt + row->emitted; }

/* Tokens of its next round; behind a step under way as long as any. */
static Count round_of(const Run *run, const Row *row, int is_ahead) {
    return 1 + (is_ahead && row->in_flight ? run->draft_tokens : row->drafted);
}

/* -- memory (sim.engine.paged, where no request has what another one computed) */

static Count blocks_of(const Run *run, Count tokens) { return (uint32_t)(tokens + run->set.block_size - 1) / (uint32_t)run->set.block_size; }

static void take_blocks(Run *run, Count count) {
    run->num_free -= count;
    Count missing = count - run->num_blank;
    run->num_blank = missing < 0 ? -missing : 0;
    Hole *first = run->holes.at;
    while (missing > 0) {
        Count taken = missing;
        if (run->holes.count && first->from == run->line_head) {
            run->line_head = first->to;
            memmove(first, first + 1, --run->holes.count * sizeof(Hole));
            continue;
        }
        if (run->holes.count) taken = fewer(missing, first->from - run->line_head);
        run->line_head += taken, missing -= taken;
    }
}

/* All that the table has is free; what has a key comes last, its last block first. */
static void free_blocks(Run *run, Row *row) {
    Count counted = row->blocks - row->num_named, blank = 0;
    if (run->set.reuses_blank_first) blank = counted;
    if (blank && run->set.is_caching) blank = fewer(blank, row->blocks - row->cached / run->set.block_size);
    run->num_blank += run->set.kept_blocks + blank;
    run->line_tail += counted - blank;
    row->freed_at = run->line_tail, row->num_freed = row->num_named;
    run->line_tail += row->num_named;
    run->num_free += run->set.kept_blocks + row->blocks;
    row->blocks = row->num_named = 0;
}

static Count cached_tokens(const Run *run, const Row *row) {
    return more(row->cached, run->set.caches_results ? context_of_row(row) : 0);
}

/* Extend a table to `tokens` and the look-ahead behind them; 0 where memory is short. */
static inline int grow(Run *run, Row *row, Count tokens, Count lookahead) {
    Count slots = fewer(tokens + lookahead, run->set.max_len);
    if (slots > row->blocks * run->set.block_size) {
        Count missing = blocks_of(run, slots) - row->blocks;
        if (missing > run->num_free) return 0;
        take_blocks(run, missing);
        row->blocks += missing;
    }
    row->cached = fewer(tokens, tokens_so_far(row) - run->set.hashed_ahead);
    return 1;
}

/* Blocks of its own that a request which waits finds again, if it was preempted; never that of its last token. */
static Count found_blocks(const Run *run, const Row *row) {
    if (!row->is_preempted) return 0;
    Count found = row->num_freed - more(0, run->line_head - row->freed_at);
    return more(0, fewer(found, (tokens_so_far(row) - 1) / run->set.block_size) - run->set.drops_cached_block);
}

/* They are free no longer: a hole in the line. */
static void take_found(Run *run, Row *row, Count found) {
    Count to = row->freed_at + row->num_freed, from = to - found;
    row->has_left_named = from > row->freed_at && from > run->line_head;
    row->num_freed = 0;
    row->blocks = row->num_named = found, run->num_free -= found;
    if (!found || add(&run->costs, &run->holes, sizeof(Hole)) == NULL) return;
    Hole *holes = run->holes.at;
    Count place = run->holes.count - 1;
    while (place && holes[place - 1].from > from) holes[place] = holes[place - 1], place--;
    holes[place] = (Hole){from, to};
}

/* -- requests (sim.engine.serving) */

/* Let requests arrive for which there is a place, now or later; the frontend passes them on in order. */
static void bring_in(Run *run) {
    Count places = run->set.max_concurrency;
    for (; run->num_come < run->num_requests; run->num_come++) {
        Request *one = &run->requests[run->num_come];
        if (places && run->num_come - run->num_finished >= places) break;
        if (places) one->arrival_s = larger(one->arrival_s, run->now_s);
        if (places && run->num_come) one->arrival_s = larger(one->arrival_s, one[-1].arrival_s);
        one->known_s = run->entered_s = larger(one->arrival_s + delay_of(&run->set.host, one), run->entered_s);
    }
}

static void hold(Run *run, Row *row, Count by) { row->kv += by, change(&run->costs, &run->gauges[HELD], by, run->now_s); }

static Count waiting(const Run *run, Count place) { return run->queue[(run->first_waiting + place) & run->queue_mask]; }

/* `i` waits: ahead of all others, or behind those who were seen. */
static void wait_first(Run *run, Count i) { run->num_waiting++, run->queue[--run->first_waiting & run->queue_mask] = i; }
static void wait_last(Run *run, Count i) { run->queue[(run->first_waiting + run->num_waiting++) & run->queue_mask] = i; }

/* Who has come by now waits. */
static void note_arrivals(Run *run) {
    for (; run->num_queued < run->num_come && run->requests[run->num_queued].known_s <= run->now_s; run->num_queued++)
        change(&run->costs, &run->gauges[QUEUE], 1, run->requests[run->num_queued].known_s);
}

static void note_wait(Run *run, Count by) { note_arrivals(run), change(&run->costs, &run->gauges[QUEUE], by, run->now_s); }

/* A row for a request that is seen; 0 where memory is out. */
static int open_row(Run *run, Count i) {
    while (run->rows == NULL || i - run->first_row > run->row_mask) {
        Count mask = run->row_mask << 1 | 1;
        Row *rows = PyMem_Malloc((mask + 1) * sizeof(Row));
        if (rows == NULL) { run_out(&run->costs); return 0; }
        for (Count j = run->first_row; j < i; j++) rows[j & mask] = *row_of(run, j);
        PyMem_Free(run->rows);
        run->rows = rows, run->row_mask = mask;
    }
    const Request *one = &run->requests[i];
    *row_of(run, i) = (Row){.output = one->output, .prompt = one->prompt, .goal = one->prompt, .is_measured = one->is_measured,
                            .rounds = run->accepted + one->first_round, .round_at = 1};
    return 1;
}

/* `i` runs no longer and gives its memory back; whole blocks of its first `tokens` can be found again. */
static void take_memory(Run *run, Count i, Count tokens) {
    Row *row = row_of(run, i);
    Count num_named = run->set.is_caching ? tokens / run->set.block_size : 0;
    run->is_beyond |= run->set.is_caching && row->has_left_named;
    if (num_named > row->num_named) row->num_named = num_named;
    free_blocks(run, row);
    hold(run, row, -row->kv);
    if (!row->in_flight) row->drafted = 0;
    row->is_preempted = 1, run->requests[i].num_preemptions++;
    run->running_blocks -= run->requests[i].blocks;
    note_wait(run, 1);
}

/* The newest request that runs waits ahead of all others; what a step under way brings it counts. */
static Count preempt(Run *run) {
    Count i = run->running[--run->num_running];
    take_memory(run, i, cached_tokens(run, row_of(run, i)));
    wait_first(run, i);
    return i;
}

static void release(Run *run, Count i) {
    Row *row = row_of(run, i);
    Request *one = &run->requests[i];
    hold(run, row, -row->kv);
    run->num_finished++;
    PyMem_Free(row->own_rounds), row->own_rounds = NULL;
    one->last_s = row->last_s, one->prefilled = row->prefilled, one->goal = row->goal, one->num_rounds = row->num_rounds;
    one->num_accepted = row->num_accepted, one->num_drafted = row->num_drafted, one->needs_catch_up = row->needs_catch_up;
    if (row->is_preempted) {
        Count place = 0;
        while (waiting(run, place) != i) place++;
        for (run->num_waiting--; place < run->num_waiting; place++)
            run->queue[(run->first_waiting + place) & run->queue_mask] = waiting(run, place + 1);
        row->is_preempted = 0;
        note_wait(run, -1);
        return;
    }
    row->cached = cached_tokens(run, row);
    free_blocks(run, row);
    run->running_blocks -= one->blocks;
}

/* The rounds of `i` from its next token on; 0 with an exception set. Those that it has are of another token, since a draft
   was cut or a prompt that was computed again brought one. */
static int redraw_rounds(Run *run, Row *row, Count i) {
    Count most = row->output - row->emitted; /* a round brings a token at least */
    if (row->own_rounds == NULL) row->own_rounds = PyMem_Malloc(most);
    if (row->own_rounds == NULL) run_out(&run->costs);
    if (run->costs.has_failed) return 0;
    PyObject *rounds = PyObject_CallFunction(run->redraw, "LL", (long long)i, (long long)row->emitted);
    Py_ssize_t count = rounds == NULL ? -1 : PyBytes_Size(rounds);
    if (count > 0 && count <= most) memcpy(row->own_rounds, PyBytes_AsString(rounds), count);
    else if (count >= 0) PyErr_Format(PyExc_ValueError, "want 1 to %lld rounds, got %zd", (long long)most, count);
    run->costs.has_failed = PyErr_Occurred() != NULL;
    Py_XDECREF(rounds);
    row->rounds = row->own_rounds, row->next = 0, row->round_at = row->emitted;
    return !run->costs.has_failed;
}

/* How many tokens of the draft in flight are accepted. Where lengths differ, `rounds` has the most by position. */
static Count accepted_of(Run *run, Row *row, Count i) {
    if (run->num_lengths > 1) return fewer(row->rounds[row->emitted], row->drafted);
    if (row->round_at != row->emitted && !redraw_rounds(run, row, i)) return 0;
    Count accepted = row->rounds[row->next];
    if (accepted > row->drafted) { row->round_at = -1; return row->drafted; }
    row->next++, row->round_at += accepted + 1;
    return accepted;
}

/* -- a step is planned (plan.plan_step) */

static void add_chunk(Chunks *chunks, Chunk chunk) {
    chunks->at[chunks->count++] = chunk;
    chunks->tokens += chunk.new_tokens, chunks->history += chunk.history;
    chunks->longest = more(chunks->longest, chunk.new_tokens);
    chunks->longest_history = more(chunks->longest_history, chunk.history);
}

static int has_queued(const Run *run) { return run->num_waiting && !run->holds_back; }

/* A prompt that is not cut waits for a step with room for it, an answer that is never cut for memory until its end. */
static int is_held_up(const Run *run, Count i, Count room) {
    Count goal = tokens_so_far(row_of(run, i));
    if (run->set.whole_prompts && room < goal && goal <= run->set.max_tokens) return 1;
    return run->set.no_evict && run->running_blocks + run->requests[i].blocks > run->set.num_blocks;
}

/* Who waits longest gets a seat and a first chunk of at most `room` tokens; one of no tokens if nobody does, or prompts
   wait but for a last token (`is_deferred`). */
static Chunk seat(Run *run, Count room, Count padded, int is_beside_rows, int is_deferred) {
    const Settings *set = &run->set;
    Chunk none = {0, 0, 0};
    if (!has_queued(run)) return none;
    Count i = waiting(run, 0);
    Request *one = &run->requests[i];
    Row *row = row_of(run, i);
    int is_again = row->is_preempted;
    Count goal = tokens_so_far(row), found = found_blocks(run, row);
    Count history = found * set->block_size, end = fewer(goal, history + room), needed;
    if (is_deferred && goal - history > 1) return none;
    if (goal - history <= 1 && (is_beside_rows || history) && history + padded < set->max_len) {
        if (padded > room) return none;
        end = more(end, history + padded);
    }
    needed = fewer(end + set->seat_lookahead, set->max_len);
    if (!set->seats_first_chunk) needed = more(needed, goal);
    if (blocks_of(run, needed) + set->kept_blocks > run->num_free) return none;
    run->first_waiting++, run->num_waiting--;
    note_wait(run, -1);
    if (is_again) take_found(run, row, found);
    take_blocks(run, set->kept_blocks);
    grow(run, row, end, set->seat_lookahead);
    if (one->scheduled_s != one->scheduled_s) one->scheduled_s = run->now_s;
    row->is_preempted = 0, row->goal = goal, row->prefilled = history;
    hold(run, row, history);
    run->running[run->num_running++] = i, run->running_blocks += one->blocks;
    return (Chunk){end - history, history, i};
}

/* The engine looks at what has arrived, and may hold prompts back while rows run (Intake.take_in). */
static void take_in(Run *run, int after_rows) {
    const Settings *set = &run->set;
    Count tokens = run->num_running;
    run->num_plans++;
    note_arrivals(run);
    Count kept = run->num_seen; /* SGLang has some who have finished in its batch */
    for (Count j = 0; j < run->num_batch; j++) kept = fewer(kept, run->batch[j]);
    for (Count j = 0; j < run->num_ended; j++) kept = fewer(kept, run->ended[j]);
    while (run->first_row < kept && is_finished(row_of(run, run->first_row))) run->first_row++;
    run->steps_unseen++;
    if (!after_rows || run->steps_unseen >= set->receive_interval)
        for (run->steps_unseen = 0; run->num_seen < run->num_queued && open_row(run, run->num_seen); run->num_seen++) {
            run->requests[run->num_seen].queued_s = run->now_s;
            wait_last(run, run->num_seen);
        }
    run->holds_back = 0;
    if (set->batch_wait_steps && run->num_running && run->num_waiting) {
        for (Count place = 0; place < run->num_waiting; place++) tokens += run->requests[waiting(run, place)].prompt;
        run->holds_back = run->steps_held_back < set->batch_wait_steps && tokens < set->batch_wait_tokens;
        run->steps_held_back = run->holds_back ? run->steps_held_back + 1 : 0;
    }
    if (set->balance_steps) {
        Count num_waiting = run->num_waiting + run->num_queued - run->num_seen;
        int is_due = !run->num_running || num_waiting >= set->balance_queue || run->steps_balanced + 1 >= set->balance_steps;
        run->steps_balanced = is_due ? 0 : run->steps_balanced + 1;
        run->holds_back |= !is_due;
    }
}

static void clear(const Run *run, Plan *plan) {
    *plan = (Plan){.rows = plan->rows, .row_tokens = plan->row_tokens, .chunks.at = plan->chunks.at, .at_s = run->now_s};
}

/* -- steps of prompts alone and of rows alone (continuous.apart; SGLang) */

enum { SPARE_TOKENS = 2 };

/* Tokens of its answer, which ends before memory does; and those that it lacks, as admission counts them. */
static Count answer_of(const Run *run, const Row *row) {
    return fewer(row->output, run->set.num_blocks * run->set.block_size - SPARE_TOKENS - row->prompt);
}

static Count lacking_of(const Run *run, const Row *row) {
    return fewer(more(0, answer_of(run, row) - row->emitted), run->set.max_answer_tokens);
}

/* The prompt that the last step of prompts did not finish, which is the newest that runs; -1: none. */
static Count cut_prompt(const Run *run) {
    Count newest = run->num_running ? run->running[run->num_running - 1] : -1;
    return newest >= 0 && missing_of(row_of(run, newest)) > 0 ? newest : -1;
}

static Count free_tokens(const Run *run) { return run->num_free * run->set.block_size; }

/* Rows that have ended leave, or (`is_ending`) that end with the step under way; 1 where one did. */
static int let_leave(Run *run, int is_ending) {
    Count num_before = run->num_batch;
    run->num_batch = 0;
    for (Count j = 0; j < num_before; j++) {
        const Row *row = row_of(run, run->batch[j]);
        if (!is_finished(row) && !(is_ending && must_end(row))) run->batch[run->num_batch++] = run->batch[j];
    }
    if (run->num_batch < num_before || !run->num_batch) run->is_full = 0;
    return run->num_batch < num_before;
}

/* Prompts of the last step that are through become rows. */
static void merge(Run *run) {
    Count num_rows = 0;
    for (Count j = 0; j < run->num_ended; j++) if (!is_finished(row_of(run, run->ended[j]))) run->ended[num_rows++] = run->ended[j];
    if (run->has_cut || num_rows < run->num_ended || (num_rows && !run->num_batch)) run->is_full = 0;
    for (Count j = 0; j < num_rows; j++) run->batch[run->num_batch++] = run->ended[j];
    run->num_ended = run->has_cut = 0;
    if (run->set.leaves_at_once) let_leave(run, 0);
}

/* Note a prompt of the step, of which `held` tokens are computed by its end; tokens that it keeps free. */
static Count end_chunk(Run *run, Count i, Count held) {
    if (held < row_of(run, i)->goal) { run->has_cut = 1; return 0; }
    run->ended[run->num_ended++] = i;
    return fewer(answer_of(run, row_of(run, i)), run->set.max_answer_tokens);
}

static int has_room(const Run *run, double kept, Count spare) { return free_tokens(run) - spare > larger(0.0, kept); }

static void plan_prompts(Run *run, Plan *plan) {
    const Settings *set = &run->set;
    Count budget = set->max_batched_tokens, longest = set->longest_chunk, lacking = 0, spare = 0, cut = cut_prompt(run);
    Count seats = set->max_seqs - (set->leaves_at_once ? run->num_running - (cut >= 0) : run->num_batch);
    if (cut < 0 && (run->is_full || !has_queued(run))) return;
    if (cut < 0 && run->num_batch && seats < set->min_free_seats) return;
    if (cut < 0 && seats <= 0) { run->is_full = 1; return; }
    for (Count j = 0; j < run->num_batch; j++) lacking += lacking_of(run, row_of(run, run->batch[j]));
    double kept = run->ratio * lacking;
    if (cut >= 0) {
        Row *row = row_of(run, cut);
        Count held = row->prefilled + row->in_flight, tokens = missing_of(row);
        Count in_last = row->blocks * set->block_size - held, room = more(in_last, in_last + (Count)(free_tokens(run) - kept));
        if (set->leaves_at_once && free_tokens(run) - kept < 1.0) room = budget;
        tokens = fewer(fewer(tokens, room), fewer(longest, budget));
        if (!tokens || !grow(run, row, held + tokens, 0)) { run->has_cut = 1; return; }
        add_chunk(&plan->chunks, (Chunk){tokens, held, cut});
        budget -= tokens, spare += set->spare_tokens;
        kept += end_chunk(run, cut, held + tokens);
    }
    while (has_queued(run) && !run->is_full) {
        Count i = waiting(run, 0);
        const Row *row = row_of(run, i);
        Count found = found_blocks(run, row) * set->block_size, whole = tokens_so_far(row) - found + lacking_of(run, row);
        if (set->leaves_at_once && budget <= 0 && has_room(run, kept, spare)) return;
        int is_alone = set->leaves_at_once && !run->num_running;
        run->is_full = !is_alone && whole + set->spare_tokens >= free_tokens(run) - found - kept - spare;
        run->is_full |= plan->chunks.count >= seats;
        if (run->is_full || budget <= 0 || run->has_cut) return;
        Chunk chunk = seat(run, fewer(budget, longest), 0, 0, 0);
        if (!chunk.new_tokens) { run->is_full = 1; return; }
        add_chunk(&plan->chunks, chunk);
        budget -= chunk.new_tokens, spare += set->spare_tokens;
        kept += end_chunk(run, i, chunk.history + chunk.new_tokens);
        if (!has_room(run, kept, spare)) run->is_full = 1;
        if (budget <= 0 || run->has_cut) return;
    }
}

/* A row waits behind all who were seen; what a step under way brings it counts for nothing. */
static void give_up(Run *run, Count i) {
    Row *row = row_of(run, i);
    row->is_lost = row->in_flight > 0, row->in_flight = 0;
    take_memory(run, i, fewer(row->prefilled, row->goal));
    wait_last(run, i);
}

/* Tokens of a row's table for its next step (Apart._needed). */
static Count needed_of(const Run *run, const Row *row, Count tokens) {
    int is_known = run->set.kept_tokens && row->prefilled >= row->goal;
    return context_of_row(row) + (is_known ? 0 : row->in_flight) + (run->set.kept_tokens ? run->set.kept_tokens : tokens);
}

/* The rows have no room for their next step. */
static int lacks(const Run *run, Count tokens) {
    Count lacking = 0;
    for (Count j = 0; j < run->num_batch; j++) {
        const Row *row = row_of(run, run->batch[j]);
        lacking += more(0, blocks_of(run, needed_of(run, row, tokens)) - row->blocks);
    }
    return lacking > run->num_free;
}

/* Who has fewest tokens out goes first, of equals the longest prompt, with drafts the newest, until the others have room. */
static void retract(Run *run) {
    Count emitted = 0, answers = 0, *batch = run->batch;
    for (Count j = 1; (!run->set.lookahead || run->set.kept_tokens) && j < run->num_batch; j++) {
        Count i = batch[j], place = j;
        for (; place; place--) {
            Count before = row_of(run, batch[place - 1])->emitted, own = row_of(run, i)->emitted;
            if (before > own || (before == own && run->requests[batch[place - 1]].prompt <= run->requests[i].prompt)) break;
            batch[place] = batch[place - 1];
        }
        batch[place] = i;
    }
    for (int is_first = 1; run->num_batch > 1 && (is_first || lacks(run, 1 + run->set.lookahead)); is_first = 0)
        give_up(run, batch[--run->num_batch]);
    for (Count j = 0; j < run->num_batch; j++) emitted += row_of(run, batch[j])->emitted, answers += answer_of(run, row_of(run, batch[j]));
    run->ratio = smaller(1.0, (emitted + run->set.retract_steps * run->num_batch) / (answers + 1));
}

static void plan_rows(Run *run, Plan *plan, int is_ahead) {
    const Settings *set = &run->set;
    int has_left = let_leave(run, set->leaves_at_once);
    Count num_before = run->num_batch, num_rows = 0, cut = cut_prompt(run);
    if (!num_before) return;
    if (lacks(run, 1 + 2 * set->lookahead)) {
        if (has_left && set->leaves_at_once) return; /* their memory comes back with the step under way */
        retract(run);
    } else run->ratio = larger(run->ratio - (set->initial_ratio - set->min_ratio) / set->decay_steps, set->min_ratio);
    if (run->num_batch < num_before) run->is_full = 0;
    for (Count j = 0; j < run->num_batch; j++) {
        Count i = run->batch[j];
        Row *row = row_of(run, i);
        Count tokens = round_of(run, row, is_ahead), held = context_of_row(row) + row->in_flight;
        if (!must_end(row) && !grow(run, row, more(needed_of(run, row, 0), held + tokens), 0)) { give_up(run, i); continue; }
        run->batch[num_rows++] = i;
        if (!must_end(row)) plan->rows[plan->num_rows] = i, plan->row_tokens[plan->num_rows++] = tokens;
    }
    run->num_batch = num_rows;
    Count *ending = run->ended, num_ending = 0; /* free here: the step has no prompts */
    for (Count j = 0; set->leaves_at_once && j < run->num_running; j++)
        if (must_end(row_of(run, run->running[j])) && run->running[j] != cut) ending[num_ending++] = run->running[j];
    memcpy(run->running, run->batch, num_rows * sizeof(Count));
    memcpy(run->running + num_rows, ending, num_ending * sizeof(Count));
    run->num_running = num_rows + num_ending;
    if (cut >= 0) run->running[run->num_running++] = cut;
}

/* Free what the table has beyond what is held (RadixPool.give_back). */
static void give_back(Run *run, Row *row) {
    Count spare = fewer(row->blocks - blocks_of(run, context_of_row(row)), row->blocks - row->num_named);
    if (spare > 0) row->blocks -= spare, run->num_free += spare, run->num_blank += spare;
}

static void fill_apart(Run *run, Plan *plan, int is_ahead) {
    const Settings *set = &run->set;
    merge(run);
    for (Count j = 0; set->lookahead && !set->kept_tokens && j < run->num_running; j++)
        if (!row_of(run, run->running[j])->in_flight) give_back(run, row_of(run, run->running[j]));
    if (!run->num_batch && !is_ahead) run->num_deferred = 0;
    int is_deferred = run->num_deferred > 0;
    run->num_deferred -= is_deferred;
    if (!is_deferred) plan_prompts(run, plan);
    if (!plan->chunks.count) plan_rows(run, plan, is_ahead);
    if (!plan->num_rows && !plan->chunks.count && !is_ahead) {
        if (!((set->is_async || set->leaves_at_once) && has_queued(run))) run->ratio = set->initial_ratio;
        if (!run->num_batch) plan_prompts(run, plan);
    }
    if (plan->chunks.count) run->num_deferred = set->decode_interval;
}

/* What a step that has ended brings to those who were retracted meanwhile counts for nothing. */
static void leave_out_lost(Run *run, Plan *plan) {
    Count num_rows = 0, num_chunks = 0;
    for (Count j = 0; j < plan->num_rows; j++) if (!row_of(run, plan->rows[j])->is_lost) plan->rows[num_rows++] = plan->rows[j];
    for (Count j = 0; j < plan->chunks.count; j++)
        if (!row_of(run, plan->chunks.at[j].request)->is_lost) plan->chunks.at[num_chunks++] = plan->chunks.at[j];
    for (Count j = 0; j < run->num_waiting; j++) row_of(run, waiting(run, j))->is_lost = 0;
    plan->num_rows = num_rows, plan->chunks.count = num_chunks;
}

/* A row of a step that begins; its draft is cut to what had room. */
static void begin_row(Run *run, Plan *plan, Row *row, Count i, Count tokens) {
    if (row->drafted >= tokens) {
        hold(run, row, tokens - 1 - row->drafted);
        row->drafted = tokens - 1;
    }
    row->in_flight = row->drafted + 1;
    plan->tokens += row->in_flight, plan->context += context_of_row(row);
    plan->rows[plan->num_rows++] = i;
}

/* Who has finished meanwhile is left out (plan.begin_step). A step that was planned at its beginning has begun. */
static void begin_step(Run *run, Plan *plan) {
    Count count = plan->has_begun ? 0 : plan->num_rows, num_planned = plan->num_rows + plan->chunks.count;
    if (count) plan->num_rows = 0;
    for (Count j = 0; j < count; j++) {
        Row *row = row_of(run, plan->rows[j]);
        if (!is_finished(row)) begin_row(run, plan, row, plan->rows[j], plan->row_tokens[j]);
    }
    for (Count j = 0; j < plan->chunks.count; j++)
        row_of(run, plan->chunks.at[j].request)->in_flight = plan->chunks.at[j].new_tokens;
    run->draft_tokens = run->lengths[fewer(num_planned, run->num_lengths - 1)];
}

static Count num_arrived(const Run *run) { return run->num_waiting + run->num_queued - run->num_seen; }

/* True where prompts wait for a later step (plan._defers_prompts). */
static int defers_prompts(const Run *run) {
    const Settings *set = &run->set;
    Count num_since = set->counts_prompt_steps ? run->num_steps + 1 - run->last_prompt_step : (run->num_plans - 1) % set->prefill_interval;
    int is_due = set->counts_prompt_steps ? !run->last_prompt_step || num_since >= set->prefill_interval : !num_since;
    if (set->prefill_interval <= 1 || is_due || run->has_left_waiting) return 0;
    for (Count j = 0; j < run->num_running; j++) if (missing_of(row_of(run, run->running[j])) <= 0) return 1;
    return 0;
}

/* Drafts behind a step that has `tokens` of a request, of which its prompt lacks `missing`, may be used. */
static int uses_drafts(const Row *row, Count tokens, Count missing) {
    int has_more = missing <= 0 && row->in_flight;
    return tokens >= missing && row->emitted + 1 + has_more < row->output;
}

/* Fill a step's budget, ahead of what the step under way brings or not. Each request fits when it is alone
   (sim.run.experiment), so that the oldest one is never preempted. */
static void fill(Run *run, Plan *plan, int is_ahead, int after_rows) {
    const Settings *set = &run->set;
    Count budget = set->max_tokens, slots = set->slots_per_request, longest = set->longest_chunk;
    int has_preempted = 0, carries_prompts = 0, is_used = !set->skips_unused_drafts;
    take_in(run, after_rows);
    clear(run, plan);
    if (set->retracts) { fill_apart(run, plan, is_ahead); return; }
    plan->has_begun = !is_ahead;
    if (set->spares_lone_prompt && run->num_running + num_arrived(run) == 1) longest = set->max_tokens;
    int is_deferred = set->prefill_interval > 1 && defers_prompts(run);
    for (Count index = 0; index < run->num_running && budget > slots;) {
        Count i = run->running[index++], missing, held, tokens;
        Row *row = row_of(run, i);
        if ((missing = missing_of(row)) <= 0 ? must_end(row) : is_deferred) continue;
        held = (missing > 0 ? row->prefilled : context_of_row(row)) + row->in_flight;
        tokens = fewer(missing > 0 ? missing : round_of(run, row, is_ahead), fewer(longest, budget - slots));
        if (missing <= 0) tokens = fewer(tokens, set->max_len - held - 1);
        if (tokens <= 0) continue;
        while (!grow(run, row, held + tokens, set->lookahead)) {
            has_preempted = 1;
            if (preempt(run) == i) break;
        }
        if (row->is_preempted) break;
        budget -= tokens + slots;
        carries_prompts |= missing > 0, is_used |= uses_drafts(row, tokens, missing);
        if (missing > 0) add_chunk(&plan->chunks, (Chunk){tokens, held, i});
        else if (plan->has_begun) begin_row(run, plan, row, i, tokens);
        else plan->rows[plan->num_rows] = i, plan->row_tokens[plan->num_rows++] = tokens;
    }
    Count padded = plan->chunks.count ? 0 : set->padded_tokens;
    int can_seat = !has_preempted && !(is_deferred && set->defers_last_token);
    while (can_seat && budget > slots && run->num_running < set->max_seqs && has_queued(run)) {
        if (is_held_up(run, waiting(run, 0), budget - slots)) break;
        Chunk chunk = seat(run, fewer(budget - slots, longest), padded, plan->num_rows > 0, is_deferred);
        if (!chunk.new_tokens) break;
        const Row *row = row_of(run, chunk.request);
        carries_prompts |= chunk.history < row->goal - 1, is_used |= uses_drafts(row, chunk.new_tokens, row->goal - chunk.history);
        add_chunk(&plan->chunks, chunk);
        budget -= chunk.new_tokens + slots;
    }
    if (!is_deferred && !has_preempted) run->has_left_waiting = num_arrived(run) > 0;
    run->num_steps += plan->num_rows || plan->chunks.count;
    if (carries_prompts) run->last_prompt_step = run->num_steps;
    plan->skips_drafts = !is_used;
}

/* -- a step is served */

static int is_empty(const Plan *plan) { return !plan->num_rows && !plan->chunks.count; }
static int is_last(const Run *run, const Chunk *chunk) {
    return chunk->history + chunk->new_tokens >= row_of(run, chunk->request)->goal;
}

/* The target pass of a step and a model's drafts behind it; when the last of them ends. */
static double submit_step(Run *run, const Plan *plan, double ahead_s) {
    Count num_completed = 0, draft_tokens = plan->skips_drafts ? 0 : run->draft_tokens;
    Pass target = {.rows = plan->num_rows, .row_tokens = plan->tokens, .context = plan->context, .chunks = &plan->chunks};
    Pass draft = {.context = plan->context, .chunks = &plan->chunks};
    for (Count j = 0; j < plan->chunks.count; j++) {
        if (!is_last(run, &plan->chunks.at[j])) continue;
        num_completed++, draft.context += row_of(run, plan->chunks.at[j].request)->goal;
    }
    target.head_rows = target.row_tokens + num_completed;
    if (run->set.drafts_before_verify && run->set.draft_tokens) {
        Count longest = 0;
        for (Count j = 0; j < plan->num_rows; j++) longest = more(longest, row_of(run, plan->rows[j])->drafted);
        Pass later = {.rows = target.rows, .row_tokens = target.rows, .context = target.context, .head_rows = target.rows,
                      .passes = longest - 1, .chunks = &NO_CHUNKS, .goes_on = 1};
        if (longest > 1) submit(run, 1, &later, ahead_s), ahead_s = INFINITY;
        draft_tokens = fewer(1, draft_tokens);
    }
    double end_s = submit(run, 0, &target, ahead_s);
    if (!run->set.draft_tokens || run->set.looks_up) return end_s;
    draft.rows = plan->num_rows + num_completed, draft.passes = draft.rows ? draft_tokens : 0;
    draft.head_rows = draft_tokens ? draft.rows : 0;
    draft.row_tokens = run->set.reads_features ? target.row_tokens : 2 * draft.rows;
    return submit(run, 1, &draft, 0.0);
}

/* The host looks up drafts for all that have a token. */
static void look_up(Run *run, const Plan *plan) {
    Count rows = plan->num_rows;
    for (Count j = 0; j < plan->chunks.count; j++) rows += is_last(run, &plan->chunks.at[j]);
    if (!rows || !run->draft_tokens) return;
    run->now_s = run->issuer_free_s = larger(run->issuer_free_s, run->now_s) + run->set.host.lookup_row_s * rows;
    run->totals.usage[0][1].num_works++;
}

/* More tokens are out. */
static void emit(Run *run, Row *row, Count i, Count count) {
    if (row->emitted == 0) run->requests[i].first_s = run->now_s;
    row->last_s = run->now_s;
    row->emitted = fewer(row->emitted + count, row->output);
}

/* The last token lets the request go; else its next round is open. Tokens that its memory takes. */
static Count go_on(Run *run, Row *row, Count i) {
    if (is_finished(row)) release(run, i);
    if (is_finished(row) || row->is_preempted) return 0;
    row->drafted = run->draft_tokens, row->kv += row->drafted + 1;
    return row->drafted + 1;
}

/* The rounds of a step's rows; what is rejected is rolled back. */
static void commit_rows(Run *run, const Plan *plan) {
    Alike alike = {0};
    Count held = 0;
    for (Count j = 0; j < plan->num_rows; j++) {
        Count i = plan->rows[j];
        Row *row = row_of(run, i);
        Count accepted = 0;
        if (row->is_measured) note_gap(&run->costs, &run->gaps, &alike, row->last_s, run->now_s);
        row->needs_catch_up = 0;
        if (row->drafted) {
            accepted = accepted_of(run, row, i);
            if (!row->is_preempted) row->kv += accepted - row->drafted, held += accepted - row->drafted;
            row->num_rounds++, row->num_drafted += row->drafted, row->num_accepted += accepted;
            row->needs_catch_up = row->drafted == accepted;
        }
        row->drafted = row->in_flight = 0;
        emit(run, row, i, accepted + 1);
        held += go_on(run, row, i);
    }
    add_alike(&run->costs, &run->gaps, &alike, run->now_s);
    if (plan->num_rows) change(&run->costs, &run->gauges[HELD], held, run->now_s);
}

/* All that a step brought (plan.commit_step). */
static void commit(Run *run, Plan *plan) {
    Count count = 0, num_finished = run->num_finished;
    if (run->set.retracts) leave_out_lost(run, plan);
    for (Count j = 0; j < plan->chunks.count; j++) row_of(run, plan->chunks.at[j].request)->in_flight = 0;
    commit_rows(run, plan);
    for (Count j = 0; j < plan->chunks.count; j++) {
        Chunk *chunk = &plan->chunks.at[j];
        Count i = chunk->request, was_last = is_last(run, chunk);
        Row *row = row_of(run, i);
        chunk->new_tokens = fewer(chunk->new_tokens, row->goal - row->prefilled); /* without padding */
        row->prefilled += chunk->new_tokens;
        if (!row->is_preempted) hold(run, row, chunk->new_tokens);
        if (row->prefilled == row->goal) {
            if (row->emitted && row->is_measured) add_gap(&run->costs, &run->gaps, run->now_s - row->last_s, 1);
            run->requests[i].known_s = run->now_s;
            emit(run, row, i, 1);
        }
        if (was_last) change(&run->costs, &run->gauges[HELD], go_on(run, row, i), run->now_s);
    }
    for (Count j = 0; run->num_finished > num_finished && j < run->num_running; j++)
        if (!is_finished(row_of(run, run->running[j]))) run->running[count++] = run->running[j];
    if (run->num_finished > num_finished) run->num_running = count;
}

/* Time goes on. */
static void advance(Run *run, double to_s) {
    run->now_s = to_s;
    if (!run->costs.has_failed) run->costs.has_failed = PyErr_CheckSignals() < 0;
}

/* All requests served: 1; nothing can go on, or not here: 0. */
static int serve_all(Run *run) {
    Plan *plan = &run->plans[0], *next = &run->plans[1];
    int is_planned = 0, after_rows = 0;
    run->ratio = run->set.initial_ratio;
    while (!run->costs.has_failed && run->num_finished < run->num_requests) {
        if (!is_planned || is_empty(plan)) fill(run, plan, 0, after_rows && run->num_running);
        is_planned = 0;
        if (run->is_beyond) return 0;
        if (is_empty(plan)) {
            bring_in(run);
            const Request *next_one = &run->requests[run->num_queued];
            if (run->num_queued == run->num_come) return 0;
            advance(run, larger(run->now_s, next_one->known_s));
            if (!(next_one->known_s <= run->now_s)) return 0; /* a cost was nan: nobody comes any more */
            continue;
        }
        begin_step(run, plan);
        if (is_empty(plan)) continue;
        double end_s = submit_step(run, plan, run->now_s - plan->at_s);
        after_rows = !plan->chunks.count;
        if (run->set.is_async) fill(run, next, 1, after_rows), is_planned = 1;
        bring_in(run);
        advance(run, end_s + (plan->chunks.count ? run->set.host.prompt_result_s : run->set.host.result_s));
        if (run->set.looks_up) look_up(run, plan);
        commit(run, plan);
        Plan *done = plan;
        plan = next, next = done;
    }
    return !run->is_beyond;
}

/* Arrays for as many as are served at once; 0 with an exception set. At most `max_seqs` run. A step has each of them once,
   as a row or a chunk. SGLang's batch may have the rows of a step that is over beside those of the next, and one more that
   ended as a chunk while no seat was free. */
static int begin(Run *run, const int8_t *accepted) {
    Count most = 2 * fewer(run->set.max_seqs, run->num_requests) + 2;
    run->accepted = accepted;
    run->running = PyMem_Malloc(3 * most * sizeof(Count));
    if (run->running) run->batch = run->running + most, run->ended = run->batch + most;
    for (run->queue_mask = 1; run->queue_mask < run->num_requests; run->queue_mask = run->queue_mask << 1 | 1);
    run->queue = PyMem_Malloc((run->queue_mask + 1) * sizeof(Count));
    int is_begun = run->running && run->queue;
    for (Plan *plan = run->plans; plan < run->plans + 2; plan++) {
        plan->rows = PyMem_Malloc(2 * most * sizeof(Count));
        plan->chunks.at = PyMem_Malloc(most * sizeof(Chunk));
        plan->row_tokens = plan->rows == NULL ? NULL : plan->rows + most;
        is_begun = is_begun && plan->rows && plan->chunks.at;
    }
    run->num_free = run->num_blank = run->set.num_blocks;
    run->gauges[QUEUE].keeps = run->gauges[HELD].keeps = run->set.is_part;
    if (!is_begun) run_out(&run->costs);
    return is_begun;
}

static void end(Run *run) {
    for (Count i = run->first_row; i < run->num_seen; i++) PyMem_Free(row_of(run, i)->own_rounds);
    for (Plan *plan = run->plans; plan < run->plans + 2; plan++) PyMem_Free(plan->rows), PyMem_Free(plan->chunks.at);
    PyMem_Free(run->rows), PyMem_Free(run->running), PyMem_Free(run->queue);
    PyMem_Free(run->holes.at), PyMem_Free(run->gaps.at), PyMem_Free(run->gauges[QUEUE].changes.at), PyMem_Free(run->gauges[HELD].changes.at);
}

/* -- the door */

/* Buffers that Python gives: of each model its constants, and its slots by kind. */
enum { SETTINGS, REQUESTS, ACCEPTED, LENGTHS, MODELS, NUM_BUFFERS = MODELS + 2 * (1 + NUM_KINDS) };

typedef struct { PyObject *redraw; Py_buffer view[NUM_BUFFERS]; int num_open; } Input;

/* A struct as it is in Python; 0 with an exception set. */
static int copy(void *into, Py_ssize_t size, const Py_buffer *view) {
    if (view->len == size) memcpy(into, view->buf, size);
    else PyErr_Format(PyExc_ValueError, "want a struct of %zd bytes, got %zd", size, view->len);
    return view->len == size;
}

/* Open the buffers, and read settings, which end with what is told of the host, and costs; 0 with an exception set. */
static int open_input(Input *in, PyObject *args, void *set, Py_ssize_t size, Costs *costs) {
    PyObject *buffers;
    if (!PyArg_ParseTuple(args, "OOOOO!", &costs->ask, &costs->check, &costs->hear, &in->redraw, &PyTuple_Type, &buffers)) return 0;
    for (; in->num_open < NUM_BUFFERS; in->num_open++) {
        PyObject *buffer = PyTuple_GetItem(buffers, in->num_open);
        if (buffer == NULL || PyObject_GetBuffer(buffer, &in->view[in->num_open], PyBUF_WRITABLE) < 0) return 0;
    }
    if (!copy(set, size, &in->view[SETTINGS])) return 0;
    memcpy(&costs->host, (char *)set + size - sizeof(Host), sizeof(Host));
    const Py_buffer *view = &in->view[MODELS];
    for (Model *m = costs->model; m < costs->model + 2; m++) {
        if (!copy(&m->is, sizeof m->is, view++)) return 0;
        for (int kind = 0; kind < NUM_KINDS; kind++, view++) {
            Py_ssize_t width = (Py_ssize_t)m->is.widths[kind], num_slots = view->len / (Py_ssize_t)sizeof(double) / width;
            m->slots[kind] = (Slots){view->buf, width, num_slots - 1};
        }
    }
    return 1;
}

static void close_input(Input *in) { while (in->num_open) PyBuffer_Release(&in->view[--in->num_open]); }
static Count num_requests(const Input *in) { return in->view[REQUESTS].len / (Py_ssize_t)sizeof(Request); }

static PyObject *serve(PyObject *Py_UNUSED(module), PyObject *args) {
    Run run = {0};
    Input in = {0};
    PyObject *result = NULL;
    if (open_input(&in, args, &run.set, sizeof run.set, &run.costs)) {
        run.redraw = in.redraw, run.requests = in.view[REQUESTS].buf, run.num_requests = num_requests(&in);
        run.lengths = in.view[LENGTHS].buf, run.num_lengths = in.view[LENGTHS].len;
        int is_served = begin(&run, in.view[ACCEPTED].buf) && serve_all(&run);
        run.totals.now_s = run.now_s, run.totals.busy_s += run.device_free_s - run.busy_since_s;
        tell_gaps(&run.costs, &run.gaps);
        if (!run.costs.has_failed && !is_served) result = Py_BuildValue("");
        if (!run.costs.has_failed && is_served) result = accounts_of(&run.totals, sizeof run.totals, run.gauges);
    }
    close_input(&in);
    end(&run);
    return result;
}

static PyObject *serve_in_lanes(PyObject *Py_UNUSED(module), PyObject *args) {
    Input in = {0};
    PyObject *result = NULL;
    Lanes *l = PyMem_Calloc(1, sizeof(Lanes));
    if (l == NULL) return PyErr_NoMemory();
    if (open_input(&in, args, &l->set, sizeof l->set, &l->costs)) {
        l->requests = in.view[REQUESTS].buf, l->num_requests = num_requests(&in), l->accepted = in.view[ACCEPTED].buf;
        int is_served = begin_lanes(l) && serve_lanes(l);
        Totals totals = totals_of(l);
        tell_gaps(&l->costs, &l->gaps);
        if (!l->costs.has_failed && !is_served) result = Py_BuildValue("");
        if (!l->costs.has_failed && is_served) result = accounts_of(&totals, sizeof totals, l->gauges);
    }
    close_input(&in);
    end_lanes(l);
    PyMem_Free(l);
    return result;
}

static PyMethodDef METHODS[] = {
    {"serve", serve, METH_VARARGS, "A whole run of continuous batching; empty where it is not for this loop."},
    {"serve_in_lanes", serve_in_lanes, METH_VARARGS, "A whole run of a policy with lanes; empty where it stalls."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot NO_SLOTS[] = {{0, NULL}};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "core", .m_methods = METHODS, .m_slots = NO_SLOTS};

PyMODINIT_FUNC PyInit_core(void) { return PyModuleDef_Init(&MODULE); }
