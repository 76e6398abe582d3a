/* The compiled core: whole runs of `continuous` and of policies with lanes, which sim.run.compiled takes.

Takes numbers and arrays, knows no files. Every operation on a double is the one of the Python code, in its order, so that
results are equal to the last bit (build without contraction into fused multiply-adds). Settings, requests and steps come
as the structs of these files: sim.run.compiled has the same fields, and has checked that no loop here goes beyond an
array or on for ever.

core_costs.h    what a pass costs
core_device.h   streams that share a device
core_lanes.h    pd, pdv, unified, baseline
here            `continuous`, and the door

Continuous batching runs as totals: what sim.policies.continuous.loop.by_totals does on a device with one stream. Steps are
kept in a ring that is longer than any request has rounds.

Not here: what a run that is taken must be like (sim.run.compiled), what is in a slot (sim.costs.forms). */

#include "core_costs.h"

typedef struct {
    double arrival_s, entered_s, known_s, queued_s, scheduled_s, first_s, last_s;
    double delay_s;            /* in the frontend */
    Count prompt, output, blocks, is_measured, first_round, num_rounds, num_accepted;
    Count next_leaving;        /* who leaves in the same step, 1 more than its number; 0: nobody */
} Request;

#include "core_device.h"
#include "core_lanes.h"

/* -- continuous batching */

typedef struct {
    Count draft_tokens, max_seqs, max_tokens, max_concurrency, slots_per_request, padded_tokens, num_blocks;
    Count is_async, no_evict, whole_prompts, reads_features, looks_up;
    Host host;
} Settings;

typedef struct { Count advance, num_leaving, measured, kept, blocks, num_ending, first_leaving; } Step;
/* Prompts of a step, completed ones first, tokens of these, and how many of them are rows from then on. */
typedef struct { Chunks chunks; Count num_completed, completed_tokens, num_joining; double at_s; } Plan;
typedef struct { double end_s; Count measured, held; } Done; /* a step: rows whose gap counts, tokens behind it */
typedef struct { double now_s, busy_s; Usage usage[2]; } Totals;

typedef struct {
    Settings set;
    Costs costs;
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
} Run;

/* Submit a work, prepared for `ahead_s`; returns when it ends on the device. */
static double submit(Run *run, int model, const Pass *p, double ahead_s) {
    double prepare_s;
    Cost cost = work_cost(&run->costs, model, p, ahead_s, &prepare_s);
    double prepared_s = larger(run->issuer_free_s, run->now_s) + prepare_s;
    double start_s = larger(run->device_free_s, prepared_s);
    run->issuer_free_s = prepared_s + cost.launch_s;
    run->device_free_s = larger(start_s + cost.device_s, run->issuer_free_s);
    run->totals.busy_s += run->device_free_s - start_s;
    Usage *usage = &run->totals.usage[model];
    usage->num_works++;
    usage->device_s += run->device_free_s - start_s;
    usage->tokens += tokens_of(p);
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
        one->known_s = one->entered_s;
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

static void add_chunk(Chunks *chunks, Chunk chunk) {
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
        add_chunk(&plan->chunks, chunk);
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
    run->now_s = run->issuer_free_s = larger(run->issuer_free_s, run->now_s) + run->set.host.lookup_row_s * rows;
    run->totals.usage[1].num_works++;
}

/* The step that just ended is noted, with `measured` rows whose gap counts. */
static void note_step(Run *run, Count measured, Count held) {
    if (run->step == run->max_done) {
        run->max_done = run->max_done ? 2 * run->max_done : 1024;
        Done *done = PyMem_Realloc(run->done, run->max_done * sizeof(Done));
        if (done == NULL) { PyErr_NoMemory(); run->costs.has_failed = 1; return; }
        run->done = done;
    }
    run->done[run->step++] = (Done){run->now_s, measured, held};
    if (run->step % STEPS_PER_SIGNAL_CHECK == 0 && !run->costs.has_failed) run->costs.has_failed = PyErr_CheckSignals() < 0;
}

/* All requests served: 1; memory is short or nothing can go on, which is not for this loop: 0. */
static int serve_all(Run *run) {
    const Settings *set = &run->set;
    Plan *plan = &run->plans[0], *next = &run->plans[set->is_async];
    int is_planned = 0;
    while (!run->costs.has_failed && run->num_finished < run->num_requests) {
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
        run->now_s = end_s + (plan->chunks.count ? set->host.prompt_result_s : set->host.result_s);
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

enum { SETTINGS, REQUESTS, ACCEPTED, NUM_MODEL_BUFFERS = 2 * (1 + NUM_KINDS), MODELS = 3, RING = MODELS + NUM_MODEL_BUFFERS, CHUNKS, MOST_BUFFERS };
/* Buffers; a model has constants and slots by kind. */

/* A struct as it is in Python; 0 with an exception set. */
static int copy(void *into, Py_ssize_t size, const Py_buffer *view) {
    if (view->len == size) memcpy(into, view->buf, size);
    else PyErr_Format(PyExc_ValueError, "want a struct of %zd bytes, got %zd", size, view->len);
    return view->len == size;
}

static int read_costs(Costs *costs, const Host *host, const Py_buffer *view) {
    costs->host = *host;
    view += MODELS;
    for (Model *m = costs->model; m < costs->model + 2; m++) {
        if (!copy(&m->is, sizeof m->is, view++)) return 0;
        for (int kind = 0; kind < NUM_KINDS; kind++, view++) {
            Py_ssize_t width = (Py_ssize_t)m->is.widths[kind];
            m->slots[kind] = (Slots){view->buf, width, view->len / (Py_ssize_t)sizeof(double) / width - 1};
        }
    }
    return 1;
}

/* Open `count` buffers of what Python gave; how many were opened, less than `count` with an exception set. */
static int open_buffers(PyObject *args, Costs *costs, Py_buffer *view, int count) {
    PyObject *buffers;
    int i = 0;
    if (!PyArg_ParseTuple(args, "OOO!", &costs->ask, &costs->check, &PyTuple_Type, &buffers)) return 0;
    for (; i < count; i++) {
        PyObject *buffer = PyTuple_GetItem(buffers, i);
        if (buffer == NULL || PyObject_GetBuffer(buffer, &view[i], PyBUF_WRITABLE) < 0) break;
    }
    return i;
}

static void close_buffers(Py_buffer *view, int count) { while (count) PyBuffer_Release(&view[--count]); }
static Count num_requests(const Py_buffer *view) { return view[REQUESTS].len / (Py_ssize_t)sizeof(Request); }

static PyObject *serve(PyObject *Py_UNUSED(module), PyObject *args) {
    Run run = {.partial = -1};
    Py_buffer view[MOST_BUFFERS];
    PyObject *result = NULL;
    int is_served = -1, count = open_buffers(args, &run.costs, view, MOST_BUFFERS);
    if (count == MOST_BUFFERS && copy(&run.set, sizeof run.set, &view[SETTINGS]) && read_costs(&run.costs, &run.set.host, view)) {
        run.free_blocks = run.set.num_blocks;
        run.requests = view[REQUESTS].buf, run.num_requests = num_requests(view);
        run.accepted = view[ACCEPTED].buf;
        run.ring = view[RING].buf, run.ring_mask = view[RING].len / (Py_ssize_t)sizeof(Step) - 1;
        run.plans[0].chunks.at = view[CHUNKS].buf;
        run.plans[1].chunks.at = run.plans[0].chunks.at + view[CHUNKS].len / (Py_ssize_t)sizeof(Chunk) / 2;
        is_served = serve_all(&run);
    }
    run.totals.now_s = run.now_s;
    if (is_served >= 0 && !run.costs.has_failed)
        result = Py_BuildValue(is_served ? "y#y#" : "", (char *)run.done, (Py_ssize_t)(run.step * sizeof(Done)),
                               (char *)&run.totals, (Py_ssize_t)sizeof run.totals);
    close_buffers(view, count);
    PyMem_Free(run.done);
    return result;
}

static PyObject *serve_in_lanes(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer view[RING];
    PyObject *result = NULL;
    LaneTotals totals;
    Lanes *l = PyMem_Calloc(1, sizeof(Lanes));
    if (l == NULL) return PyErr_NoMemory();
    int is_served = -1, count = open_buffers(args, &l->costs, view, RING);
    if (count == RING && copy(&l->set, sizeof l->set, &view[SETTINGS]) && read_costs(&l->costs, &l->set.host, view)) {
        l->requests = view[REQUESTS].buf, l->num_requests = num_requests(view);
        l->accepted = view[ACCEPTED].buf;
        l->device.is_out_of_memory = !begin_lanes(l);
        is_served = serve_lanes(l);
    }
    if (l->device.is_out_of_memory && !l->costs.has_failed) PyErr_NoMemory();
    else if (is_served >= 0 && !l->costs.has_failed) {
        totals = totals_of(l);
        result = Py_BuildValue(is_served ? "y#y#" : "", l->gaps ? (char *)l->gaps : "", (Py_ssize_t)(l->num_gaps * sizeof(Gap)),
                               (char *)&totals, (Py_ssize_t)sizeof totals);
    }
    close_buffers(view, count);
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
