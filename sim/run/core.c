/* A run of continuous batching as totals: what sim.policies.continuous.loop.by_totals does on a device with one stream.

Takes numbers and arrays, knows no files and no policies. Every operation on a double is the one of the Python code, in
its order, so that results are equal to the last bit (build without contraction into fused multiply-adds). Numbers of
costs are kept in rows of slots [first key, second key, numbers]; `ask` writes one that is lacking, `check` hears of
passes beyond what was measured. Steps are kept in a ring that is longer than any request has rounds. Settings, requests
and steps come as the structs below: sim.run.compiled has the same fields, and has checked that no loop here goes beyond
an array or on for ever.

Not here: what a run that is taken must be like (sim.run.compiled), what is in a slot (sim.costs.forms). */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef int64_t Count;

enum Kind { ROWS, LATER, BESIDE, CHUNK, TOKENS, HEAD, NUM_KINDS };
enum { KEYS = 2, NUM_SIZES = 6, STEPS_PER_SIGNAL_CHECK = 1024, BLOCK_QUERIES = 128 };

typedef struct {
    double is_table, by_rows;  /* by_rows: the body depends on rows as well as on tokens (experts) */
    double layers, extra_s, phase_s, max_row_tokens;
    double fixed_s;            /* prefill attention of both forms; up to context_s compact's */
    double sharpness, root, four_heads, prefill_rate, small_factor, kv_bytes, kv_rate, block_s, tile_share, half_extra;
    double context_s;
    double pair_s, kv_token_s; /* table: a history that was not measured */
    double told[NUM_SIZES];    /* largest sizes (check_range) measured, or told to `check` */
    double widths[NUM_KINDS];  /* of slots */
} Constants;

typedef struct { double *data; Py_ssize_t width, mask; } Slots;
typedef struct { Constants is; double told_context; Slots slots[NUM_KINDS]; } Model;

typedef struct {
    Count draft_tokens, max_seqs, max_tokens, max_concurrency, slots_per_request, padded_tokens, num_blocks;
    Count is_async, no_evict, whole_prompts, reads_features, looks_up;
    double step_s, row_s, eager_s, result_s, prompt_result_s, lookup_row_s;
    double served[5];          /* prefill, decode, verify, draft, draft_prefill (sim.costs.in_service) */
} Settings;

typedef struct {
    double arrival_s, entered_s, queued_s, scheduled_s, first_s, last_s;
    double delay_s;            /* in the frontend */
    Count prompt, output, blocks, is_measured, first_round, num_rounds, num_accepted;
    Count next_leaving;        /* who leaves in the same step, 1 more than its number; 0: nobody */
} Request;

typedef struct { Count new_tokens, history, request; } Chunk;
typedef struct { Count count, tokens, history, longest, longest_history; Chunk *at; } Chunks;
typedef struct { Count rows, row_tokens, context, head_rows, passes; const Chunks *chunks; } Pass;
typedef struct { double device_s, launch_s; } Cost;
typedef struct { Count advance, num_leaving, measured, kept, blocks, num_ending, first_leaving; } Step;
/* Prompts of a step, completed ones first, tokens of these, and how many of them are rows from then on. */
typedef struct { Chunks chunks; Count num_completed, completed_tokens, num_joining; double at_s; } Plan;
typedef struct { double end_s; Count measured, held; } Done; /* a step: rows whose gap counts, tokens behind it */
typedef struct { Count num_works, tokens; double device_s; } Usage;
typedef struct { double now_s, busy_s; Usage usage[2]; } Totals;

typedef struct {
    Settings set;
    Model model[2];
    PyObject *ask, *check;
    Request *requests;         /* in order of arrival */
    const int8_t *accepted;    /* drafted tokens, by rounds */
    Count num_requests, num_come, num_queued, num_seen, num_admitted, num_finished, num_active;
    Count partial, partial_tokens; /* the prompt that is admitted and not wholly planned, below 0 for none */
    Count num_rows, num_measured, context, free_blocks, step;
    double now_s, issuer_free_s, device_free_s;
    Totals totals;
    Step *ring;
    Count ring_mask;
    Plan plans[2];
    Done *done;                /* [steps] */
    Count max_done;
    int has_failed;            /* an exception is set: nothing is asked any more, and the loop ends */
} Run;

/* -- costs */

static const double ONES[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* The numbers of a slot, asked for where they are not there; of any kind, where that failed. */
static const double *slot(Run *run, Model *m, enum Kind kind, Count first, Count second) {
    Slots *slots = &m->slots[kind];
    Py_ssize_t place = (first + second * 31) & slots->mask;
    double *row = slots->data + place * slots->width;
    if (row[0] == (double)first && row[1] == (double)second) return row + KEYS;
    if (run->has_failed) return ONES;
    PyObject *none = PyObject_CallFunction(run->ask, "iinLL", (int)(m - run->model), (int)kind, place,
                                           (long long)first, (long long)second);
    run->has_failed = none == NULL;
    Py_XDECREF(none);
    return none == NULL ? ONES : row + KEYS;
}

static double larger(double a, double b) { return b > a ? b : a; }

/* Index of the last of the rising points that is not above `at`; -1 where all are. */
static Py_ssize_t last_up_to(const double *points, Py_ssize_t count, double at) {
    Py_ssize_t low = 0, high = count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (at < points[middle]) high = middle; else low = middle + 1;
    }
    return low - 1;
}

/* `line` at `at`: its number of points, these, and their values (sim.costs.forms.interpolation.value_at). */
static double value_at(const double *line, double at) {
    Py_ssize_t count = (Py_ssize_t)line[0], upper, lower;
    const double *axis = line + 1, *values = axis + count;
    if (count == 1 || at <= axis[0]) return values[0];
    upper = last_up_to(axis, count, at) + 1;
    if (upper > count - 1) upper = count - 1;
    if (at <= axis[count - 1]) lower = upper - 1;
    else if ((lower = last_up_to(axis, count, axis[count - 1] / 2)) < 0) lower = 0;
    double weight = (at - axis[lower]) / (axis[upper] - axis[lower]);
    return values[lower] + weight * (values[upper] - values[lower]);
}

/* A layer's attention of rows over `kv` tokens, compact: blocks_power, kv_token_s. */
static double together_s(const Model *m, const double *numbers, double kv) {
    return pow(numbers[0] + pow(kv * numbers[1], m->is.sharpness), m->is.root);
}

/* KV that the rows of a pass read. */
static Count kv_tokens(const Model *m, const Pass *p) {
    double most = p->rows * m->is.max_row_tokens;
    return (m->is.max_row_tokens > 0.0 && p->context > most ? (Count)most : p->context) + p->row_tokens;
}

/* ROWS and LATER: [launch_s, most context, fusion_s, fixed_s, query_s, then of the form]. */
enum { LAUNCH_S, MOST_CONTEXT, FUSION_S, FIXED_S, QUERY_S, OF_ROWS };

static double rows_attention_s(const Model *m, const double *numbers, double kv) {
    if (!m->is.is_table) return m->is.layers * together_s(m, numbers + OF_ROWS, kv);
    Py_ssize_t count = (Py_ssize_t)numbers[OF_ROWS]; /* points, KV tokens, seconds, slopes */
    const double *points = numbers + OF_ROWS + 1;
    Py_ssize_t i = last_up_to(points, count, kv);
    return points[count + i] + points[2 * count + i] * (kv - points[i]);
}

/* Tell `check` of a pass with a size beyond what was measured and told. */
static void check_range(Run *run, Model *m, const Pass *p, double most_context) {
    const Chunks *chunks = p->chunks;
    Count context = p->rows ? p->context / p->rows : 0, queries = p->rows ? (p->row_tokens + p->rows - 1) / p->rows : 0;
    Count sizes[NUM_SIZES] = {p->row_tokens + chunks->tokens, p->head_rows, p->rows, chunks->longest,
                              chunks->longest_history, queries};
    int is_new = context > most_context && context >= m->told_context;
    if (is_new) m->told_context = (double)context;
    for (int i = 0; i < NUM_SIZES; i++)
        if ((double)sizes[i] > m->is.told[i]) m->is.told[i] = (double)sizes[i], is_new = 1;
    if (!is_new || run->has_failed) return;
    PyObject *none = PyObject_CallFunction(run->check, "iLLLLy#", (int)(m - run->model), (long long)p->rows,
                                           (long long)p->row_tokens, (long long)p->context, (long long)p->head_rows,
                                           (char *)chunks->at, (Py_ssize_t)(chunks->count * sizeof(Chunk)));
    run->has_failed = none == NULL;
    Py_XDECREF(none);
}

/* A work of rows alone, with all its passes (WorkCosts.cost). */
static Cost rows_cost(Run *run, Model *m, enum Kind kind, const Pass *p) {
    const double *part = slot(run, m, kind, p->rows, 0);
    if (p->context > part[MOST_CONTEXT]) check_range(run, m, p, part[MOST_CONTEXT] / p->rows);
    Count num_later = p->passes - 1;
    double kv = (double)kv_tokens(m, p);
    Cost cost = {part[FIXED_S] + rows_attention_s(m, part, kv) + kv * part[QUERY_S], part[LAUNCH_S]};
    cost.device_s += part[FUSION_S];
    cost.device_s += m->is.phase_s;
    if (num_later <= 0) return cost;
    part = slot(run, m, LATER, p->rows, 0);
    cost.launch_s += num_later * part[LAUNCH_S];
    cost.device_s += num_later * part[FIXED_S];
    for (Count i = 0; i < num_later; i++) {
        kv += p->rows;
        cost.device_s += rows_attention_s(m, part, kv);
    }
    return cost;
}

/* One layer's attention over the chunks of a pass, from measured curves. */
static double curves_s(Run *run, Model *m, const Chunks *chunks) {
    double total = 0.0;
    for (const Chunk *chunk = chunks->at; chunk < chunks->at + chunks->count; chunk++) {
        const double *curve = slot(run, m, CHUNK, chunk->new_tokens, 0);
        if (curve[0] > 1.0) total += value_at(curve, (double)chunk->history);
        else total += curve[2] + (m->is.pair_s * chunk->new_tokens + m->is.kv_token_s) * chunk->history;
    }
    return total - (chunks->count - 1) * m->is.fixed_s;
}

/* The same from compact constants. */
static double pairs_s(const Constants *is, const Chunks *chunks) {
    double pairs = 0.0;
    for (const Chunk *chunk = chunks->at; chunk < chunks->at + chunks->count; chunk++) {
        Count padded = (chunk->new_tokens + BLOCK_QUERIES - 1) / BLOCK_QUERIES * BLOCK_QUERIES;
        double queries = chunk->new_tokens + is->tile_share * (padded - chunk->new_tokens);
        pairs += queries * (chunk->history + 0.5 * queries + is->half_extra);
    }
    double compute = is->four_heads * pairs / is->prefill_rate * is->small_factor;
    double memory = chunks->tokens * is->kv_bytes / is->kv_rate, longest = is->block_s * chunks->longest / BLOCK_QUERIES;
    return is->fixed_s + compute + memory + longest + chunks->history * is->context_s;
}

/* BESIDE: [most context of a row, seconds per token of a row's KV, seconds taken off, then of the form]. */
static double beside_s(const Model *m, const Pass *p, const double *numbers) {
    double kv = (double)kv_tokens(m, p), seconds = m->is.is_table ? value_at(numbers + 3, kv) : together_s(m, numbers + 3, kv);
    return seconds + numbers[1] * (kv / p->rows) - numbers[2];
}

/* A work with chunks (WorkCosts._any_cost). */
static Cost chunks_cost(Run *run, Model *m, const Pass *p) {
    const double *beside = p->rows ? slot(run, m, BESIDE, p->rows, p->row_tokens) : NULL;
    check_range(run, m, p, beside ? beside[0] : INFINITY);
    double attention_s = m->is.is_table ? curves_s(run, m, p->chunks) : pairs_s(&m->is, p->chunks);
    if (beside) attention_s += beside_s(m, p, beside);
    double head_s = p->head_rows ? slot(run, m, HEAD, p->head_rows, 0)[0] : 0.0;
    Count by_rows = m->is.by_rows ? p->rows << 20 | p->row_tokens : 0;
    const double *rest = slot(run, m, TOKENS, p->row_tokens + p->chunks->tokens, by_rows); /* body, launch, fusion */
    Cost cost = {rest[0] + m->is.layers * attention_s + head_s, rest[1]};
    cost.device_s += m->is.extra_s + rest[2];
    if (p->rows) cost.device_s += m->is.phase_s;
    if (p->passes <= 1 || !p->rows) return cost;
    Chunks none = {.at = p->chunks->at};
    Pass later = {p->rows, p->rows, p->context + p->row_tokens, p->rows, p->passes - 1, &none};
    Cost more = rows_cost(run, m, LATER, &later);
    cost.launch_s += more.launch_s;
    cost.device_s += more.device_s - slot(run, m, LATER, p->rows, 0)[FUSION_S] - m->is.phase_s;
    return cost;
}

/* Submit a work, prepared for `ahead_s`; returns when it ends on the device. */
static double submit(Run *run, int model, const Pass *p, double ahead_s) {
    Model *m = &run->model[model];
    const Settings *set = &run->set;
    Cost cost = p->chunks->count || !p->rows ? chunks_cost(run, m, p) : rows_cost(run, m, ROWS, p);
    double served = set->served[model ? (p->rows ? 3 : 4) : !p->rows ? 0 : p->row_tokens > p->rows ? 2 : 1];
    double device_s = cost.device_s + cost.device_s * (served - 1.0);
    double prepare_s = set->step_s + set->row_s * (p->rows + p->chunks->count);
    if (p->chunks->count) prepare_s += set->eager_s;
    if (ahead_s != 0.0) prepare_s = larger(prepare_s - ahead_s, 0.0);
    double prepared_s = larger(run->issuer_free_s, run->now_s) + prepare_s;
    double start_s = larger(run->device_free_s, prepared_s);
    run->issuer_free_s = prepared_s + cost.launch_s;
    run->device_free_s = larger(start_s + device_s, run->issuer_free_s);
    run->totals.busy_s += run->device_free_s - start_s;
    Usage *usage = &run->totals.usage[model];
    usage->num_works++;
    usage->device_s += run->device_free_s - start_s;
    usage->tokens += p->row_tokens + p->chunks->tokens + (p->passes ? p->rows * (p->passes - 1) : 0);
    return run->device_free_s;
}

/* -- requests */

/* Let requests arrive for which there is a place, now or later; the frontend passes them on in order. */
static void bring_in(Run *run) {
    Count places = run->set.max_concurrency;
    for (; run->num_come < run->num_requests; run->num_come++) {
        Request *one = &run->requests[run->num_come];
        if (places && run->num_come - run->num_finished >= places) break;
        if (places) one->arrival_s = larger(one->arrival_s, run->now_s);
        if (places && run->num_come) one->arrival_s = larger(one->arrival_s, one[-1].arrival_s);
        one->entered_s = one->arrival_s + one->delay_s;
        if (run->num_come) one->entered_s = larger(one->entered_s, one[-1].entered_s);
    }
}

/* True where all who could be admitted fit for their whole lives (plan.has_room). */
static int has_room(const Run *run, Count num_seated) {
    const Settings *set = &run->set;
    Count num_begun = num_seated + (run->partial >= 0), seats = set->max_seqs - num_begun;
    Count free_blocks = run->free_blocks, tokens = 0, per_row = set->draft_tokens + 1 + set->slots_per_request;
    for (Count i = run->num_admitted; !set->no_evict && i < run->num_queued && seats > 0; i++, seats--) {
        free_blocks -= run->requests[i].blocks;
        if (++num_begun * per_row > set->max_tokens || free_blocks < 0) return 0;
        tokens += run->requests[i].prompt;
        if (tokens >= set->max_tokens) break;
    }
    return 1;
}

/* The first chunk of who waits longest, within `room`, while `num_seated` hold seats; of no tokens if nobody's. */
static Chunk admitted(Run *run, Count num_seated, Count room, Count padded) {
    const Settings *set = &run->set;
    Request *one = &run->requests[run->num_admitted];
    Chunk chunk = {0, 0, run->num_admitted};
    if (run->num_admitted == run->num_queued || num_seated >= set->max_seqs) return chunk;
    if (set->whole_prompts && room < one->prompt && one->prompt <= set->max_tokens) return chunk;
    Count new_tokens = one->prompt == 1 && padded ? padded : one->prompt < room ? one->prompt : room;
    if (new_tokens > room || run->num_active >= set->max_seqs || one->blocks > run->free_blocks) return chunk;
    run->free_blocks -= one->blocks;
    run->num_admitted++, run->num_active++;
    one->scheduled_s = run->now_s;
    chunk.new_tokens = new_tokens;
    return chunk;
}

static void add(Chunks *chunks, Chunk chunk) {
    chunks->at[chunks->count++] = chunk;
    chunks->tokens += chunk.new_tokens, chunks->history += chunk.history;
    if (chunk.new_tokens > chunks->longest) chunks->longest = chunk.new_tokens;
    if (chunk.history > chunks->longest_history) chunks->longest_history = chunk.history;
}

/* Prompts of a step of `num_rows` while `num_seated` hold seats (plan.plan_prompts); 0 where memory is short. */
static int plan_prompts(Run *run, Plan *plan, Count num_seated, Count num_rows) {
    Count slots = run->set.slots_per_request, padded = run->partial < 0 && num_rows > 0 ? run->set.padded_tokens : 0;
    Count budget = run->set.max_tokens - num_rows * (run->set.draft_tokens + 1 + slots);
    while (run->num_queued < run->num_come && run->requests[run->num_queued].entered_s <= run->now_s) run->num_queued++;
    if (!has_room(run, num_seated)) return 0;
    *plan = (Plan){.chunks.at = plan->chunks.at, .at_s = run->now_s};
    while (run->num_seen < run->num_queued) run->requests[run->num_seen++].queued_s = run->now_s;
    while (budget > slots) {
        Chunk chunk = {budget - slots, run->partial_tokens, run->partial};
        if (run->partial < 0) chunk = admitted(run, num_seated + plan->chunks.count, budget - slots, padded);
        if (!chunk.new_tokens) break;
        const Request *one = &run->requests[chunk.request];
        Count left = one->prompt - chunk.history;
        if (run->partial >= 0 && chunk.new_tokens > left) chunk.new_tokens = left;
        add(&plan->chunks, chunk);
        budget -= chunk.new_tokens + slots;
        run->partial = chunk.new_tokens < left ? chunk.request : -1;
        run->partial_tokens = chunk.history + chunk.new_tokens;
        if (run->partial >= 0) break;
        plan->num_completed++, plan->completed_tokens += one->prompt;
        plan->num_joining += one->output > 1;
    }
    return 1;
}

/* The first token of `i` is out: all that it will do as a row is written down (totals.Rows.join). */
static void join(Run *run, Count i) {
    Request *one = &run->requests[i];
    Step *leaves = &run->ring[(run->step + one->num_rounds) & run->ring_mask];
    Count last = 0;
    for (Count j = 0; run->set.draft_tokens && j < one->num_rounds; j++) {
        last = run->accepted[one->first_round + j];
        one->num_accepted += last;
        run->ring[(run->step + 1 + j) & run->ring_mask].advance += last;
    }
    Count gained = one->num_rounds + one->num_accepted;
    run->num_rows++, run->num_measured += one->is_measured;
    run->context += one->prompt;
    leaves->num_leaving++, leaves->measured += one->is_measured;
    leaves->kept += one->prompt + gained, leaves->blocks += one->blocks;
    leaves->num_ending += 1 + gained - last == one->output;
    one->next_leaving = leaves->first_leaving, leaves->first_leaving = i + 1;
}

/* Rows gain what the step brought them, and some leave (totals.Rows.advance). */
static void advance(Run *run) {
    Step *step = &run->ring[run->step & run->ring_mask];
    run->context += run->num_rows + step->advance - step->kept;
    run->num_rows -= step->num_leaving, run->num_measured -= step->measured;
    run->free_blocks += step->blocks;
    run->num_active -= step->num_leaving, run->num_finished += step->num_leaving;
    for (Count i = step->first_leaving; i; i = run->requests[i - 1].next_leaving)
        run->requests[i - 1].last_s = run->now_s;
    memset(step, 0, sizeof *step);
}

/* Prompts that the step completed have their first token. */
static void complete(Run *run, const Plan *plan) {
    for (Count i = 0; i < plan->num_completed; i++) {
        Request *one = &run->requests[plan->chunks.at[i].request];
        one->first_s = one->last_s = run->now_s;
        if (one->output > 1) join(run, plan->chunks.at[i].request);
        else run->free_blocks += one->blocks, run->num_active--, run->num_finished++;
    }
}

/* -- steps */

/* The target pass of a step and a model's drafts behind it; when the last of them ends. */
static double submit_step(Run *run, const Plan *plan, double ahead_s) {
    Count draft_tokens = run->set.draft_tokens, row_tokens = run->num_rows * (draft_tokens + 1);
    Pass target = {run->num_rows, row_tokens, run->context, row_tokens + plan->num_completed, 0, &plan->chunks};
    double end_s = submit(run, 0, &target, ahead_s);
    if (!draft_tokens || run->set.looks_up) return end_s;
    Count rows = run->num_rows + plan->num_completed, first_tokens = run->set.reads_features ? row_tokens : 2 * rows;
    Count context = run->context + plan->completed_tokens, passes = rows ? draft_tokens : 0;
    Pass draft = {rows, first_tokens, context, rows, passes, &plan->chunks};
    return submit(run, 1, &draft, 0.0);
}

/* The host looks up drafts for `rows`. */
static void look_up(Run *run, Count rows) {
    if (!rows) return;
    run->now_s = run->issuer_free_s = larger(run->issuer_free_s, run->now_s) + run->set.lookup_row_s * rows;
    run->totals.usage[1].num_works++;
}

/* The step that just ended is noted, with `measured` rows whose gap counts. */
static void note_step(Run *run, Count measured, Count held) {
    if (run->step == run->max_done) {
        run->max_done = run->max_done ? 2 * run->max_done : 1024;
        Done *done = PyMem_Realloc(run->done, run->max_done * sizeof(Done));
        if (done == NULL) { PyErr_NoMemory(); run->has_failed = 1; return; }
        run->done = done;
    }
    run->done[run->step++] = (Done){run->now_s, measured, held};
    if (run->step % STEPS_PER_SIGNAL_CHECK == 0 && !run->has_failed) run->has_failed = PyErr_CheckSignals() < 0;
}

/* All requests served: 1; memory is short or nothing can go on, which is not for this loop: 0. */
static int serve_all(Run *run) {
    const Settings *set = &run->set;
    Plan *plan = &run->plans[0], *next = &run->plans[set->is_async];
    int is_planned = 0;
    while (!run->has_failed && run->num_finished < run->num_requests) {
        is_planned = is_planned && (run->num_rows || plan->chunks.count);
        if (!is_planned && !plan_prompts(run, plan, run->num_rows, run->num_rows)) return 0;
        if (!run->num_rows && !plan->chunks.count) {
            bring_in(run);
            if (run->num_queued == run->num_come) return 0;
            run->now_s = larger(run->now_s, run->requests[run->num_queued].entered_s);
            continue;
        }
        double end_s = submit_step(run, plan, run->now_s - plan->at_s);
        Count measured = run->num_measured, partial_tokens = run->partial >= 0 ? run->partial_tokens : 0;
        is_planned = next != plan;
        if (is_planned) {
            Count num_ending = run->ring[run->step & run->ring_mask].num_ending;
            Count num_going_on = run->num_rows - num_ending + plan->num_joining;
            if (!plan_prompts(run, next, run->num_rows + plan->num_completed, num_going_on)) return 0;
        }
        bring_in(run);
        run->now_s = end_s + (plan->chunks.count ? set->prompt_result_s : set->result_s);
        if (set->looks_up) look_up(run, run->num_rows + plan->num_completed);
        if (run->num_rows) advance(run);
        complete(run, plan);
        note_step(run, measured, run->context + run->num_rows * (set->draft_tokens + 1) + partial_tokens);
        Plan *done = plan;
        plan = next, next = done;
    }
    return 1;
}

/* -- the door */

enum { SETTINGS, REQUESTS, ACCEPTED, RING, CHUNKS, MODELS, NUM_BUFFERS = MODELS + 2 * (1 + NUM_KINDS) };
/* Buffers; a model has constants and slots by kind. */

/* A struct as it is in Python; 0 with an exception set. */
static int copy(void *into, Py_ssize_t size, const Py_buffer *view) {
    if (view->len == size) memcpy(into, view->buf, size);
    else PyErr_Format(PyExc_ValueError, "want a struct of %zd bytes, got %zd", size, view->len);
    return view->len == size;
}

static int read_run(Run *run, const Py_buffer *view) {
    if (!copy(&run->set, sizeof run->set, &view[SETTINGS])) return 0;
    run->free_blocks = run->set.num_blocks;
    run->requests = view[REQUESTS].buf, run->num_requests = view[REQUESTS].len / (Py_ssize_t)sizeof(Request);
    run->accepted = view[ACCEPTED].buf;
    run->ring = view[RING].buf, run->ring_mask = view[RING].len / (Py_ssize_t)sizeof(Step) - 1;
    run->plans[0].chunks.at = view[CHUNKS].buf;
    run->plans[1].chunks.at = run->plans[0].chunks.at + view[CHUNKS].len / (Py_ssize_t)sizeof(Chunk) / 2;
    view += MODELS;
    for (Model *m = run->model; m < run->model + 2; m++) {
        if (!copy(&m->is, sizeof m->is, view++)) return 0;
        for (int kind = 0; kind < NUM_KINDS; kind++, view++) {
            Py_ssize_t width = (Py_ssize_t)m->is.widths[kind];
            m->slots[kind] = (Slots){view->buf, width, view->len / (Py_ssize_t)sizeof(double) / width - 1};
        }
    }
    return 1;
}

static PyObject *serve(PyObject *Py_UNUSED(module), PyObject *args) {
    Run run = {.partial = -1};
    Py_buffer view[NUM_BUFFERS];
    int count = 0, is_served = -1;
    PyObject *buffers, *result = NULL;
    if (!PyArg_ParseTuple(args, "OOO!", &run.ask, &run.check, &PyTuple_Type, &buffers)) return NULL;
    for (; count < NUM_BUFFERS; count++) {
        PyObject *buffer = PyTuple_GetItem(buffers, count);
        if (buffer == NULL || PyObject_GetBuffer(buffer, &view[count], PyBUF_WRITABLE) < 0) break;
    }
    if (count == NUM_BUFFERS && read_run(&run, view)) is_served = serve_all(&run);
    run.totals.now_s = run.now_s;
    if (is_served >= 0 && !run.has_failed)
        result = Py_BuildValue(is_served ? "y#y#" : "", (char *)run.done, (Py_ssize_t)(run.step * sizeof(Done)),
                               (char *)&run.totals, (Py_ssize_t)sizeof run.totals);
    while (count) PyBuffer_Release(&view[--count]);
    PyMem_Free(run.done);
    return result;
}

static PyMethodDef METHODS[] = {{"serve", serve, METH_VARARGS, "A whole run; None where it is not for this loop."},
                                {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot NO_SLOTS[] = {{0, NULL}};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "core", .m_methods = METHODS, .m_slots = NO_SLOTS};

PyMODINIT_FUNC PyInit_core(void) { return PyModuleDef_Init(&MODULE); }
