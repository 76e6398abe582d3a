/* A run of continuous batching as totals: what sim.policies.continuous.loop.by_totals does on a device with one stream.

Takes numbers and arrays, knows no files and no policies. Every operation on a double is the one of the Python code, in
its order, so that results are equal to the last bit (build without contraction into fused multiply-adds). Numbers of the
costs are kept in rows of slots [first key, second key, numbers]; `ask` gives those that are lacking, `check` hears of
passes beyond what was measured. Steps are kept in a ring that is longer than any request has rounds.

Not here: what a run that is taken must be like (sim.run.compiled), what is in a slot (sim.costs.forms). */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t Count;

enum Kind { ROWS, LATER, BESIDE, CHUNK, TOKENS, HEAD, NUM_KINDS };
enum { SIZE_TOKENS, SIZE_HEAD, SIZE_ROWS, SIZE_CHUNK, SIZE_HISTORY, SIZE_QUERIES, NUM_SIZES };
enum { MAX_BUFFERS = 32, STEPS_PER_SIGNAL_CHECK = 1024, BLOCK_QUERIES = 128 };

typedef struct { double *data; Py_ssize_t width, mask; } Slots;

typedef struct {
    int is_table, by_rows;  /* by_rows: the body depends on rows as well as on tokens (experts) */
    double layers, extra_s, phase_s, max_row_tokens;
    double sharpness, root, four_heads, prefill_rate, small_factor, kv_bytes, kv_rate, fixed_s, block_s, tile_share,
        half_extra, context_s;          /* compact: prefill attention; fixed_s: of both forms */
    double pair_s, kv_token_s;          /* table: a history that was not measured */
    const double *histories;            /* table: the axis of measured histories */
    Py_ssize_t num_histories;
    double told[NUM_SIZES], told_context; /* largest sizes measured, or told to `check` */
    Slots slots[NUM_KINDS];
} Model;

typedef struct { Count new_tokens, history; Py_ssize_t request; } Chunk;
typedef struct { Count rows, row_tokens, context, head_rows, passes; const Chunk *chunks; Py_ssize_t num_chunks; } Pass;
typedef struct { Count advance, num_leaving, measured, kept, blocks, num_ending; Py_ssize_t first; } Step;
typedef struct { Chunk *chunks; Py_ssize_t num_chunks, num_completed; double at_s; } Plan;
typedef struct { double end_s; Count measured, held; } Done; /* a step: when it ended, measured rows, tokens then held */
typedef struct { double device_s; Count num_works, tokens; } Usage;

typedef struct {
    /* limits */
    Count draft_tokens, max_seqs, max_tokens, max_concurrency, slots_per_request, padded_tokens, free_blocks;
    int is_async, no_evict, whole_prompts, reads_features;
    /* host */
    double step_s, row_s, eager_s, result_s, prompt_result_s;
    double served[5];  /* prefill, decode, verify, draft, draft_prefill (sim.costs.in_service) */
    Model model[2];
    PyObject *ask, *check;
    /* requests, in order of arrival */
    Py_ssize_t num_requests;
    double *arrival_s, *entered_s, *queued_s, *scheduled_s, *first_s, *last_s;
    const double *delay_s;
    const Count *prompt, *output, *blocks, *offsets;
    const int8_t *accepted;
    const uint8_t *measured;
    Py_ssize_t *next_leaving;
    /* state */
    double now_s, issuer_free_s, device_free_s, busy_s;
    Py_ssize_t num_come, num_queued, num_seen, num_admitted, num_finished, partial;
    Count partial_tokens, num_active, num_rows, num_measured, context, step;
    double second_s;  /* when the second step began */
    Usage usage[2];
    Step *ring;
    Count ring_mask;
    Done *done;       /* [steps] */
    Count max_done;
    Plan plans[2];
} Run;

/* -- costs */

/* The numbers of a slot, asked for where they are not there; NULL with an exception set. */
static const double *slot(Run *run, Model *model, enum Kind kind, Count first, Count second) {
    Slots *slots = &model->slots[kind];
    double *row = slots->data + ((first + second * 31) & slots->mask) * slots->width;
    if (row[0] == (double)first && row[1] == (double)second) return row + 2;
    PyObject *numbers = PyObject_CallFunction(run->ask, "iiLL", (int)(model - run->model), (int)kind,
                                              (long long)first, (long long)second);
    if (numbers == NULL) return NULL;
    Py_ssize_t size = PyTuple_Check(numbers) ? PyTuple_Size(numbers) : -1;
    if (size < 1 || size > slots->width - 2) {
        Py_DECREF(numbers);
        PyErr_Format(PyExc_ValueError, "a slot of kind %d holds up to %zd numbers, got %zd", kind, slots->width - 2, size);
        return NULL;
    }
    row[0] = 0.0;
    for (Py_ssize_t i = 0; i < size; i++) row[2 + i] = PyFloat_AsDouble(PyTuple_GetItem(numbers, i));
    Py_DECREF(numbers);
    if (PyErr_Occurred()) return NULL;
    row[0] = (double)first, row[1] = (double)second;
    return row + 2;
}

/* Index of the last of the rising points that is not above `at`; -1 where all are. */
static Py_ssize_t last_up_to(const double *points, Py_ssize_t count, double at) {
    Py_ssize_t low = 0, high = count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (at < points[middle]) high = middle; else low = middle + 1;
    }
    return low - 1;
}

/* sim.costs.forms.interpolation.value_at */
static double value_at(const double *axis, const double *values, Py_ssize_t count, double at) {
    if (count == 1 || at <= axis[0]) return values[0];
    Py_ssize_t upper = last_up_to(axis, count, at) + 1, lower;
    if (upper > count - 1) upper = count - 1;
    if (at <= axis[count - 1]) lower = upper - 1;
    else if ((lower = last_up_to(axis, count, axis[count - 1] / 2)) < 0) lower = 0;
    double weight = (at - axis[lower]) / (axis[upper] - axis[lower]);
    return values[lower] + weight * (values[upper] - values[lower]);
}

/* The number of points that a slot says it has, if `per_point` numbers of each fit behind the `before` first ones. */
static Py_ssize_t num_points(const Slots *slots, double said, Py_ssize_t before, Py_ssize_t per_point) {
    if (!(said >= 1.0) || said * per_point > (double)(slots->width - 2 - before)) {
        PyErr_SetString(PyExc_ValueError, "more points than a slot holds");
        return -1;
    }
    return (Py_ssize_t)said;
}

/* ROWS and LATER: [launch_s, most context, fusion_s, then of the form]. */
static int row_part_s(Model *m, enum Kind kind, const double *part, double kv, double *seconds) {
    part += 3;
    if (!m->is_table) { /* fixed_s, blocks_power, kv_token_s, query_s */
        double attention_s = m->layers * pow(part[1] + pow(kv * part[2], m->sharpness), m->root);
        *seconds = part[0] + attention_s + kv * part[3];
        return 0;
    }
    Py_ssize_t count = num_points(&m->slots[kind], part[0], 4, 3); /* points, KV tokens, seconds, slopes */
    if (count < 0) return -1;
    const double *points = part + 1;
    Py_ssize_t i = last_up_to(points, count, kv);
    if (i < 0) i = 0;
    *seconds = points[count + i] + points[2 * count + i] * (kv - points[i]);
    return 0;
}

static int later_s(Model *m, const double *part, double kv, double rows, Count count, double *seconds) {
    if (!m->is_table) *seconds += count * part[3];
    for (Count i = 0; i < count; i++) {
        double pass_s;
        kv += rows;
        if (!m->is_table) pass_s = m->layers * pow(part[4] + pow(kv * part[5], m->sharpness), m->root);
        else if (row_part_s(m, LATER, part, kv, &pass_s) < 0) return -1;
        *seconds += pass_s;
    }
    return 0;
}

/* Tell `check` of a pass with a size beyond what was measured and told. */
static int check_range(Run *run, Model *m, const Pass *p, double most_context) {
    Count tokens = p->row_tokens, chunk = 0, history = 0, context = p->rows ? p->context / p->rows : 0;
    for (Py_ssize_t i = 0; i < p->num_chunks; i++) {
        tokens += p->chunks[i].new_tokens;
        if (p->chunks[i].new_tokens > chunk) chunk = p->chunks[i].new_tokens;
        if (p->chunks[i].history > history) history = p->chunks[i].history;
    }
    Count queries = p->rows ? (p->row_tokens + p->rows - 1) / p->rows : 0;
    double sizes[NUM_SIZES] = {(double)tokens, (double)p->head_rows, (double)p->rows,
                               (double)chunk, (double)history, (double)queries};
    int is_new = context > most_context && context >= m->told_context;
    if (is_new) m->told_context = (double)context;
    for (int i = 0; i < NUM_SIZES; i++)
        if (sizes[i] > m->told[i]) m->told[i] = sizes[i], is_new = 1;
    if (!is_new) return 0;
    PyObject *chunks = PyTuple_New(p->num_chunks);
    for (Py_ssize_t i = 0; chunks != NULL && i < p->num_chunks; i++) {
        PyObject *pair = Py_BuildValue("LL", (long long)p->chunks[i].new_tokens, (long long)p->chunks[i].history);
        if (pair == NULL || PyTuple_SetItem(chunks, i, pair) < 0) { Py_DECREF(chunks); return -1; }
    }
    if (chunks == NULL) return -1;
    PyObject *done = PyObject_CallFunction(run->check, "iLLLLN", (int)(m - run->model), (long long)p->rows,
                                           (long long)p->row_tokens, (long long)p->context,
                                           (long long)p->head_rows, chunks);
    if (done == NULL) return -1;
    Py_DECREF(done);
    return 0;
}

/* A work of rows alone, with all its passes (WorkCosts.cost). */
static int rows_cost(Run *run, Model *m, enum Kind kind, const Pass *p, double *device_s, double *launch_s) {
    const double *part = slot(run, m, kind, p->rows, 0);
    if (part == NULL) return -1;
    if (p->context > part[1] && check_range(run, m, p, part[1] / p->rows) < 0) return -1;
    Count kv = p->context;
    if (m->max_row_tokens > 0.0 && kv > p->rows * m->max_row_tokens) kv = (Count)(p->rows * m->max_row_tokens);
    kv += p->row_tokens;
    double seconds;
    if (row_part_s(m, kind, part, (double)kv, &seconds) < 0) return -1;
    seconds += part[2];
    seconds += m->phase_s;
    *launch_s = part[0];
    Count num_later = p->passes - 1;
    if (num_later > 0) {
        part = slot(run, m, LATER, p->rows, 0);
        if (part == NULL || later_s(m, part, (double)kv, (double)p->rows, num_later, &seconds) < 0) return -1;
        *launch_s += num_later * part[0];
    }
    *device_s = seconds;
    return 0;
}

/* One layer's attention over the chunks of a pass. */
static int chunks_s(Run *run, Model *m, const Pass *p, double *seconds) {
    double total = 0.0, pairs = 0.0;
    Count longest = 0, new_tokens = 0, history = 0;
    for (Py_ssize_t i = 0; i < p->num_chunks; i++) {
        const Chunk *chunk = &p->chunks[i];
        if (m->is_table) {
            const double *curve = slot(run, m, CHUNK, chunk->new_tokens, 0);
            if (curve == NULL) return -1;
            if (m->num_histories == 1)
                total += curve[0] + (m->pair_s * chunk->new_tokens + m->kv_token_s) * chunk->history;
            else total += value_at(m->histories, curve, m->num_histories, (double)chunk->history);
            continue;
        }
        Count padded = (chunk->new_tokens + BLOCK_QUERIES - 1) / BLOCK_QUERIES * BLOCK_QUERIES;
        double queries = chunk->new_tokens + m->tile_share * (padded - chunk->new_tokens);
        pairs += queries * (chunk->history + 0.5 * queries + m->half_extra);
        if (chunk->new_tokens > longest) longest = chunk->new_tokens;
        new_tokens += chunk->new_tokens, history += chunk->history;
    }
    if (m->is_table) {
        *seconds = total - (p->num_chunks - 1) * m->fixed_s;
        return 0;
    }
    double compute = m->four_heads * pairs / m->prefill_rate;
    compute *= m->small_factor;
    double memory = new_tokens * m->kv_bytes / m->kv_rate;
    *seconds = m->fixed_s + compute + memory + m->block_s * longest / BLOCK_QUERIES + history * m->context_s;
    return 0;
}

/* One layer's attention of rows beside chunks: [most context of a row, then of the form]. */
static int beside_s(Model *m, const Pass *p, const double *numbers, double *seconds) {
    Count context = p->context;
    if (m->max_row_tokens > 0.0 && context > p->rows * m->max_row_tokens) context = (Count)(p->rows * m->max_row_tokens);
    double kv = (double)(context + p->row_tokens);
    if (!m->is_table) { /* blocks_power, kv_token_s, pairs' */
        double together = pow(numbers[1] + pow(kv * numbers[2], m->sharpness), m->root);
        *seconds += together + numbers[3] * (kv / p->rows);
        return 0;
    }
    Py_ssize_t count = num_points(&m->slots[BESIDE], numbers[2], 3, 2); /* taken off, points, KV tokens, seconds */
    if (count < 0) return -1;
    *seconds += value_at(numbers + 3, numbers + 3 + count, count, kv) - numbers[1];
    return 0;
}

/* A work with chunks (WorkCosts._any_cost). */
static int chunks_cost(Run *run, Model *m, const Pass *p, double *device_s, double *launch_s) {
    Count tokens = p->row_tokens;
    double attention_s, most_context = INFINITY, head_s = 0.0;
    const double *beside = NULL, *numbers;
    for (Py_ssize_t i = 0; i < p->num_chunks; i++) tokens += p->chunks[i].new_tokens;
    if (p->rows) {
        if ((beside = slot(run, m, BESIDE, p->rows, p->row_tokens)) == NULL) return -1;
        most_context = beside[0];
    }
    if (check_range(run, m, p, most_context) < 0 || chunks_s(run, m, p, &attention_s) < 0) return -1;
    if (p->rows && beside_s(m, p, beside, &attention_s) < 0) return -1;
    if (p->head_rows) {
        if ((numbers = slot(run, m, HEAD, p->head_rows, 0)) == NULL) return -1;
        head_s = numbers[0];
    }
    numbers = slot(run, m, TOKENS, tokens, m->by_rows ? p->rows << 20 | p->row_tokens : 0);
    if (numbers == NULL) return -1;
    double seconds = numbers[0] + m->layers * attention_s + head_s; /* body_s, launch_s, fusion_s */
    *launch_s = numbers[1];
    seconds += m->extra_s + numbers[2];
    if (p->rows) seconds += m->phase_s;
    if (p->passes > 1 && p->rows) {
        Pass later = {p->rows, p->rows, p->context + p->row_tokens, p->rows, p->passes - 1, NULL, 0};
        double more_s, more_launch_s;
        if (rows_cost(run, m, LATER, &later, &more_s, &more_launch_s) < 0) return -1;
        if ((numbers = slot(run, m, LATER, p->rows, 0)) == NULL) return -1;
        *launch_s += more_launch_s;
        seconds += more_s - numbers[2] - m->phase_s;
    }
    *device_s = seconds;
    return 0;
}

/* Submit a work, prepared for `ahead_s`; returns when it ends on the device, below 0 with an exception set. */
static double submit(Run *run, int model, const Pass *p, double ahead_s) {
    double device_s, launch_s;
    Model *m = &run->model[model];
    int failed = p->num_chunks || !p->rows ? chunks_cost(run, m, p, &device_s, &launch_s)
                                           : rows_cost(run, m, ROWS, p, &device_s, &launch_s);
    if (failed) return -1.0;
    device_s += device_s * (run->served[model ? (p->rows ? 3 : 4) : !p->rows ? 0 : p->row_tokens > p->rows ? 2 : 1] - 1.0);
    double prepare_s = run->step_s + run->row_s * (p->rows + p->num_chunks);
    if (p->num_chunks) prepare_s += run->eager_s;
    if (ahead_s != 0.0) prepare_s = prepare_s - ahead_s > 0.0 ? prepare_s - ahead_s : 0.0;
    double issue_s = run->now_s > run->issuer_free_s ? run->now_s : run->issuer_free_s;
    double prepared_s = issue_s + prepare_s, issued_s = prepared_s + launch_s;
    double start_s = prepared_s > run->device_free_s ? prepared_s : run->device_free_s;
    double end_s = start_s + device_s;
    if (issued_s > end_s) end_s = issued_s;
    run->issuer_free_s = issued_s, run->device_free_s = end_s;
    run->busy_s += end_s - start_s;
    Usage *usage = &run->usage[model];
    usage->num_works++;
    usage->device_s += end_s - start_s;
    usage->tokens += p->row_tokens;
    if (p->passes) usage->tokens += p->rows * (p->passes - 1);
    for (Py_ssize_t i = 0; i < p->num_chunks; i++) usage->tokens += p->chunks[i].new_tokens;
    return end_s;
}

/* -- requests */

/* Let requests arrive for which there is a place, now or later; the frontend passes them on in order. */
static void bring_in(Run *run) {
    for (Py_ssize_t i = run->num_come; i < run->num_requests; i++) {
        if (run->max_concurrency) {
            if (i - run->num_finished >= run->max_concurrency) break;
            if (run->now_s > run->arrival_s[i]) run->arrival_s[i] = run->now_s;
            if (i && run->arrival_s[i - 1] > run->arrival_s[i]) run->arrival_s[i] = run->arrival_s[i - 1];
        }
        double entered_s = run->arrival_s[i] + run->delay_s[i];
        if (i && run->entered_s[i - 1] > entered_s) entered_s = run->entered_s[i - 1];
        run->entered_s[i] = entered_s;
        run->num_come = i + 1;
    }
}

/* Requests that have come by now wait. */
static void queue_up(Run *run) {
    while (run->num_queued < run->num_come && run->entered_s[run->num_queued] <= run->now_s) run->num_queued++;
}

/* True where all who could be admitted fit for their whole lives (plan.has_room). */
static int has_room(const Run *run, Count num_seated) {
    Count free_blocks = run->free_blocks, tokens = 0, seats = run->max_seqs - num_seated - (run->partial >= 0);
    Count num_begun = num_seated + (run->partial >= 0), per_row = run->draft_tokens + 1 + run->slots_per_request;
    for (Py_ssize_t i = run->num_admitted; !run->no_evict && i < run->num_queued && seats > 0; i++, seats--) {
        if (++num_begun * per_row > run->max_tokens) return 0;
        free_blocks -= run->blocks[i];
        if (free_blocks < 0) return 0;
        tokens += run->prompt[i];
        if (tokens >= run->max_tokens) break;
    }
    return 1;
}

/* Chunks of a step within `budget`, beside rows or not (plan.plan_prompts). */
static void plan_prompts(Run *run, Plan *plan, Count num_seated, Count budget, int beside_rows) {
    Count slots = run->slots_per_request, padded = run->partial < 0 && beside_rows ? run->padded_tokens : 0;
    plan->num_chunks = plan->num_completed = 0;
    plan->at_s = run->now_s;
    while (run->num_seen < run->num_queued) run->queued_s[run->num_seen++] = run->now_s;
    while (budget > slots) {
        Py_ssize_t i = run->partial;
        Count history = 0, new_tokens, room = budget - slots;
        if (i >= 0) {
            history = run->partial_tokens;
            new_tokens = run->prompt[i] - history < room ? run->prompt[i] - history : room;
        } else {
            i = run->num_admitted;
            if (i >= run->num_queued || num_seated + plan->num_chunks >= run->max_seqs) break;
            if (run->whole_prompts && room < run->prompt[i] && run->prompt[i] <= run->max_tokens) break;
            new_tokens = run->prompt[i] < room ? run->prompt[i] : room;
            if (run->prompt[i] == 1 && padded) {
                if (padded > room) break;
                new_tokens = padded;
            }
            if (run->num_active >= run->max_seqs || run->blocks[i] > run->free_blocks) break;
            run->free_blocks -= run->blocks[i];
            run->num_admitted++, run->num_active++;
            run->scheduled_s[i] = run->now_s;
        }
        Chunk *chunk = &plan->chunks[plan->num_chunks++];
        chunk->new_tokens = new_tokens, chunk->history = history, chunk->request = i;
        budget -= new_tokens + slots;
        if (history + new_tokens >= run->prompt[i]) run->partial = -1, plan->num_completed++;
        else run->partial = i, run->partial_tokens = history + new_tokens;
    }
}

static int is_last_chunk(const Run *run, const Chunk *chunk) {
    return chunk->history + chunk->new_tokens >= run->prompt[chunk->request];
}

static int note_step(Run *run, Count measured, Count held) {
    if (run->step == run->max_done) {
        Count most = run->max_done ? 2 * run->max_done : 1024;
        Done *done = PyMem_Realloc(run->done, most * sizeof(Done));
        if (done == NULL) { PyErr_NoMemory(); return -1; }
        run->done = done, run->max_done = most;
    }
    run->done[run->step] = (Done){run->now_s, measured, held};
    return 0;
}

static void release(Run *run, Py_ssize_t i) {
    run->free_blocks += run->blocks[i];
    run->num_active--, run->num_finished++;
}

/* The first token of `i` is out: all that it will do as a row is written down (totals.Rows.join). */
static void join(Run *run, Py_ssize_t i) {
    Count num_rounds = run->output[i] - 1, accepted = 0, last = 0;
    if (run->draft_tokens) {
        const int8_t *rounds = run->accepted + run->offsets[i];
        num_rounds = run->offsets[i + 1] - run->offsets[i];
        for (Count j = 0; j < num_rounds; j++) {
            accepted += rounds[j];
            run->ring[(run->step + 1 + j) & run->ring_mask].advance += rounds[j];
        }
        last = rounds[num_rounds - 1];
    }
    run->num_rows++, run->num_measured += run->measured[i];
    run->context += run->prompt[i];
    Step *leaves = &run->ring[(run->step + num_rounds) & run->ring_mask];
    leaves->num_leaving++, leaves->measured += run->measured[i];
    leaves->kept += run->prompt[i] + num_rounds + accepted;
    leaves->blocks += run->blocks[i];
    run->next_leaving[i] = leaves->first - 1, leaves->first = i + 1; /* one more, so that zeros are empty */
    leaves->num_ending += 1 + num_rounds + accepted - last == run->output[i];
}

/* Rows gain what the step brought them, and some leave (totals.Rows.advance). */
static void advance(Run *run) {
    Step *step = &run->ring[run->step & run->ring_mask];
    run->context += run->num_rows + step->advance - step->kept;
    run->num_rows -= step->num_leaving, run->num_measured -= step->measured;
    run->free_blocks += step->blocks;
    run->num_active -= step->num_leaving, run->num_finished += step->num_leaving;
    for (Py_ssize_t i = step->first - 1; i >= 0; i = run->next_leaving[i]) run->last_s[i] = run->now_s;
    memset(step, 0, sizeof *step);
}

/* The target pass of a step and the drafts behind it; when the last of them ends, below 0 with an exception set. */
static double submit_step(Run *run, const Plan *plan, double ahead_s) {
    Count row_tokens = run->num_rows * (run->draft_tokens + 1);
    Pass target = {run->num_rows, row_tokens, run->context, row_tokens + plan->num_completed, 0,
                   plan->chunks, plan->num_chunks};
    double end_s = submit(run, 0, &target, ahead_s);
    if (end_s < 0.0 || !run->draft_tokens) return end_s;
    Count rows = run->num_rows + plan->num_completed, context = run->context;
    for (Py_ssize_t i = 0; i < plan->num_chunks; i++)
        if (is_last_chunk(run, &plan->chunks[i])) context += run->prompt[plan->chunks[i].request];
    Pass draft = {rows, run->reads_features ? row_tokens : 2 * rows, context, rows, rows ? run->draft_tokens : 0,
                  plan->chunks, plan->num_chunks};
    return submit(run, 1, &draft, 0.0);
}

/* All requests served: 1; memory is short or nothing can go on, which is not for this loop: 0; an exception: -1. */
static int serve_all(Run *run) {
    Count tokens_per_row = run->draft_tokens + 1, per_row = tokens_per_row + run->slots_per_request;
    int current = 0, is_planned = 0;
    while (run->num_finished < run->num_requests) {
        Plan *plan = &run->plans[current];
        if (!is_planned || !(run->num_rows || plan->num_chunks)) {
            queue_up(run);
            if (!has_room(run, run->num_rows)) return 0;
            plan_prompts(run, plan, run->num_rows, run->max_tokens - run->num_rows * per_row, run->num_rows > 0);
            is_planned = 1;
            if (!(run->num_rows || plan->num_chunks)) {
                Py_ssize_t next = run->num_queued;
                bring_in(run);
                if (next >= run->num_come) return 0;
                if (run->entered_s[next] > run->now_s) run->now_s = run->entered_s[next];
                continue;
            }
        }
        if (run->step == 1) run->second_s = run->now_s;
        double end_s = submit_step(run, plan, run->now_s - plan->at_s);
        if (end_s < 0.0) return -1;
        is_planned = run->is_async;
        Count partial_tokens = run->partial >= 0 ? run->partial_tokens : 0;
        if (run->is_async) {
            queue_up(run);
            if (!has_room(run, run->num_rows + plan->num_completed)) return 0;
            Count going_on = run->num_rows - run->ring[run->step & run->ring_mask].num_ending;
            for (Py_ssize_t i = 0; i < plan->num_chunks; i++)
                going_on += is_last_chunk(run, &plan->chunks[i]) && run->output[plan->chunks[i].request] > 1;
            current = 1 - current;
            plan_prompts(run, &run->plans[current], run->num_rows + plan->num_completed,
                         run->max_tokens - going_on * per_row, going_on > 0);
        }
        bring_in(run);
        run->now_s = end_s + (plan->num_chunks ? run->prompt_result_s : run->result_s);
        Count measured = run->num_measured;
        if (run->num_rows) advance(run);
        for (Py_ssize_t i = 0; i < plan->num_chunks; i++) {
            Py_ssize_t request = plan->chunks[i].request;
            if (!is_last_chunk(run, &plan->chunks[i])) continue;
            run->first_s[request] = run->last_s[request] = run->now_s;
            if (run->output[request] == 1) release(run, request);
            else join(run, request);
        }
        if (note_step(run, measured, run->context + run->num_rows * tokens_per_row + partial_tokens) < 0) return -1;
        if (++run->step % STEPS_PER_SIGNAL_CHECK == 0 && PyErr_CheckSignals() < 0) return -1;
    }
    return 1;
}

/* -- the door */

static const Py_ssize_t NEEDED[NUM_KINDS][2] = {{9, 10}, {9, 10}, {6, 7}, {3, 3}, {5, 5}, {3, 3}};
/* Numbers of a slot at least, its keys among them: compact, table. */
enum { NUM_WRITTEN = 6, OFFSETS = 11, ACCEPTED = 12, NUM_ARRAYS = 13 };
static const Py_ssize_t SIZE_OF[NUM_ARRAYS] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 1, 8, 1};

/* An array of `count` elements behind a buffer, kept in `held`; NULL with an exception set. */
static void *array_of(Py_buffer *held, int *num_held, PyObject *object, Py_ssize_t count, Py_ssize_t size, int flags) {
    if (*num_held == MAX_BUFFERS || PyObject_GetBuffer(object, &held[*num_held], flags) < 0) return NULL;
    Py_buffer *view = &held[(*num_held)++];
    if (view->itemsize != size || view->len < count * size) {
        PyErr_Format(PyExc_ValueError, "want %zd numbers of %zd bytes, got %zd bytes", count, size, view->len);
        return NULL;
    }
    return view->buf;
}

static int read_model(Model *m, PyObject *numbers, PyObject *slots, PyObject *histories, Py_buffer *held, int *num_held) {
    if (!PyArg_ParseTuple(numbers, "iidddddddddddddddddd(dddddd)", &m->is_table, &m->by_rows, &m->layers, &m->extra_s,
                          &m->phase_s, &m->max_row_tokens, &m->fixed_s, &m->sharpness, &m->root, &m->four_heads,
                          &m->prefill_rate, &m->small_factor, &m->kv_bytes, &m->kv_rate, &m->block_s, &m->tile_share,
                          &m->half_extra, &m->context_s, &m->pair_s, &m->kv_token_s, &m->told[0], &m->told[1],
                          &m->told[2], &m->told[3], &m->told[4], &m->told[5]))
        return -1;
    m->histories = array_of(held, num_held, histories, 1, sizeof(double), PyBUF_ND);
    if (m->histories == NULL) return -1;
    m->num_histories = held[*num_held - 1].len / (Py_ssize_t)sizeof(double);
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        PyObject *table = PyTuple_GetItem(slots, kind);
        m->slots[kind].data = table == NULL ? NULL : array_of(held, num_held, table, 1, sizeof(double), PyBUF_ND | PyBUF_WRITABLE);
        if (m->slots[kind].data == NULL) return -1;
        Py_buffer *view = &held[*num_held - 1];
        if (view->ndim != 2 || view->shape[0] & (view->shape[0] - 1) || view->shape[1] < NEEDED[kind][m->is_table]) {
            PyErr_SetString(PyExc_ValueError, "slots must be a power of two, and as wide as their numbers");
            return -1;
        }
        m->slots[kind].mask = view->shape[0] - 1, m->slots[kind].width = view->shape[1];
    }
    if (m->is_table && m->slots[CHUNK].width < m->num_histories + 2) {
        PyErr_SetString(PyExc_ValueError, "slots of chunks must hold a number for each history");
        return -1;
    }
    return 0;
}

/* The ring, and every request checked: no loop above reads or writes beyond an array whatever it is given. */
static int prepare(Run *run, Py_ssize_t num_accepted) {
    Count longest = 1;
    for (Py_ssize_t i = 0; i < run->num_requests; i++) {
        Count num_rounds = run->output[i] - 1;
        int is_bad = run->prompt[i] < 1 || num_rounds < 0 || run->blocks[i] < 0 || isnan(run->arrival_s[i] + run->delay_s[i]);
        if (run->draft_tokens && !is_bad) {
            Count begin = run->offsets[i], end = run->offsets[i + 1];
            is_bad = begin < 0 || end < begin || end > num_accepted || (end == begin) != (num_rounds == 0);
            for (Count j = begin; !is_bad && j < end; j++) is_bad = run->accepted[j] < 0;
            num_rounds = end - begin;
        }
        if (is_bad) {
            PyErr_Format(PyExc_ValueError, "request %zd: no such arrival, prompt, output, blocks or rounds", i);
            return -1;
        }
        if (num_rounds > longest) longest = num_rounds;
    }
    Count size = 4;
    while (size < longest + 2) size *= 2;
    run->ring_mask = size - 1;
    run->ring = PyMem_Calloc(size, sizeof(Step));
    run->next_leaving = PyMem_Calloc(run->num_requests + 1, sizeof(Py_ssize_t));
    for (int i = 0; i < 2; i++) run->plans[i].chunks = PyMem_Calloc(run->max_seqs + 2, sizeof(Chunk));
    if (run->ring == NULL || run->next_leaving == NULL || run->plans[0].chunks == NULL || run->plans[1].chunks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static PyObject *results(const Run *run) {
    const Usage *usage = run->usage;
    return Py_BuildValue("(y#dd(LLd)(LLd)d)", run->done ? (char *)run->done : "", run->step * (Py_ssize_t)sizeof(Done),
                         run->now_s, run->step > 1 ? run->second_s : INFINITY, (long long)usage[0].num_works,
                         (long long)usage[0].tokens, usage[0].device_s, (long long)usage[1].num_works,
                         (long long)usage[1].tokens, usage[1].device_s, run->busy_s);
}

static PyObject *serve(PyObject *Py_UNUSED(module), PyObject *args) {
    Run run = {.partial = -1};
    Py_buffer held[MAX_BUFFERS];
    int num_held = 0, outcome = -1;
    PyObject *numbers[2], *slots[2], *histories[2], *arrays, *given = NULL;
    long long draft_tokens, max_seqs, max_tokens, max_concurrency, per_request, padded, free_blocks;
    if (!PyArg_ParseTuple(args, "(LLLLLLLpppp)(ddddd(ddddd))(O!O!O)(O!O!O)O!OO", &draft_tokens, &max_seqs, &max_tokens,
                          &max_concurrency, &per_request, &padded, &free_blocks, &run.is_async, &run.no_evict,
                          &run.whole_prompts, &run.reads_features, &run.step_s, &run.row_s, &run.eager_s,
                          &run.result_s, &run.prompt_result_s, &run.served[0], &run.served[1], &run.served[2],
                          &run.served[3], &run.served[4], &PyTuple_Type, &numbers[0], &PyTuple_Type, &slots[0],
                          &histories[0], &PyTuple_Type, &numbers[1], &PyTuple_Type, &slots[1], &histories[1],
                          &PyTuple_Type, &arrays, &run.ask, &run.check))
        return NULL;
    run.draft_tokens = draft_tokens, run.max_seqs = max_seqs, run.max_tokens = max_tokens;
    run.max_concurrency = max_concurrency, run.slots_per_request = per_request, run.padded_tokens = padded;
    run.free_blocks = free_blocks;
    if (draft_tokens < 0 || max_seqs < 1 || max_tokens < 1 || max_concurrency < 0 || per_request < 0 || padded < 0) {
        PyErr_SetString(PyExc_ValueError, "limits must not be negative");
        return NULL;
    }
    for (int i = 0; i < 2; i++)
        if (read_model(&run.model[i], numbers[i], slots[i], histories[i], held, &num_held) < 0) goto done;
    void *array[NUM_ARRAYS];
    for (int i = 0; i < NUM_ARRAYS; i++) {
        PyObject *object = PyTuple_GetItem(arrays, i);
        Py_ssize_t count = i == OFFSETS ? run.num_requests + 1 : i == ACCEPTED ? 0 : run.num_requests;
        int flags = i < NUM_WRITTEN ? PyBUF_ND | PyBUF_WRITABLE : PyBUF_ND;
        array[i] = object == NULL ? NULL : array_of(held, &num_held, object, count, SIZE_OF[i], flags);
        if (array[i] == NULL) goto done;
        if (i == 0) run.num_requests = held[num_held - 1].len / SIZE_OF[0];
    }
    run.arrival_s = array[0], run.entered_s = array[1], run.queued_s = array[2], run.scheduled_s = array[3];
    run.first_s = array[4], run.last_s = array[5], run.delay_s = array[6], run.prompt = array[7];
    run.output = array[8], run.blocks = array[9], run.measured = array[10], run.offsets = array[OFFSETS];
    run.accepted = array[ACCEPTED];
    if (prepare(&run, held[num_held - 1].len) == 0) outcome = serve_all(&run);
done:
    if (outcome == 1) given = results(&run);
    else if (outcome == 0) given = Py_BuildValue("");
    while (num_held) PyBuffer_Release(&held[--num_held]);
    PyMem_Free(run.ring), PyMem_Free(run.next_leaving), PyMem_Free(run.done);
    PyMem_Free(run.plans[0].chunks), PyMem_Free(run.plans[1].chunks);
    return given;
}

static PyMethodDef METHODS[] = {{"serve", serve, METH_VARARGS, "A whole run; None where it is not for this loop."},
                                {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot MODULE_SLOTS[] = {{0, NULL}};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "core", "by_totals in C.", 0, METHODS, MODULE_SLOTS, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_core(void) { return PyModuleDef_Init(&MODULE); }
