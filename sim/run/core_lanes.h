/* Policies with lanes: what sim.policies.pd, pdv, unified and baseline do, as coroutines over one device.

A coroutine is a function that is called again where it paused. It says in its Task what it waits for (`wake_s`, works, or a
count that changes) and pauses with PAUSE; BEGIN and END are the switch that leads back there, so that whatever must
last from one call to the next stands in the Task. Coroutines that are due at one instant run in the order in which they
paused (design, wake order). A worker that polls finds what has changed at its next look.

Not here: the device (core_device.h), which runs are taken (sim.run.compiled). */

enum Policy { PD, PDV, UNIFIED, BASELINE };
/* Streams by number: decode, prefill (pd); draft, verify, prefill (pdv, unified); all in one (baseline). */
enum { MAX_WORKERS = 64, MAX_TASKS = MAX_WORKERS + 2, MOST_WAITS = 3 };

typedef struct {
    Count policy, draft_tokens, max_seqs, max_tokens, max_concurrency, num_blocks, plans_ahead, num_workers, hybrid_requests;
    Count rows_per_draft, rows_per_verify, decode_batch;
    double phi, poll_s, look_s, inflation[MAX_STREAMS], num_kernels[2];
    Host host;
} LaneSettings;

typedef struct { Count emitted, next_round; } Progress;                          /* of a request */
/* Requests in line, in a ring; its version rises with all that are put and taken. */
typedef struct { Count *at, head, tail, mask, version; } Lane;
typedef struct { Count *at, count; } Batch;
typedef struct Lanes Lanes;

typedef struct Task {
    void (*run)(Lanes *, struct Task *);
    int line;
    Count post;                                            /* when it paused */
    double wake_s, poll_s, since_s;
    const Op *waits_for[MOST_WAITS];
    const Count *changes;
    Count seen;
    Batch batch;
    Op *round;                                             /* the verify, or decode, of `batch` */
    Count request, last;                                   /* in the target as a prompt; before it, in the draft model; -1: none */
    Op *prompt, *through, *last_through;                   /* of `request` in target and draft model; of `last` in the latter */
} Task;

struct Lanes {
    LaneSettings set;
    Costs costs;
    Device device;
    Request *requests;
    Progress *progress;
    const int8_t *accepted;
    Count num_requests, num_come, num_entered, num_admitted, num_finished, free_blocks;
    Count changed;                                         /* of the queue of those that wait (Intake.changed) */
    Lane decode, verify;
    Gauge gauges[NUM_GAUGES];
    List gaps;
    Count num_polls, num_posts;
    Task tasks[MAX_TASKS];
    int num_tasks;
};

/* -- requests (sim.engine.serving) */

static void hold_tokens(Lanes *l, Count by) { change(&l->costs, &l->gauges[HELD], by, l->device.now_s); }

static void queue_up(Lanes *l) {
    l->requests[l->num_entered++].known_s = l->device.now_s;
    change(&l->costs, &l->gauges[QUEUE], 1, l->device.now_s);
    l->changed++;
}

/* Who waits longest, where a seat and memory are free; else -1. */
static Count admit(Lanes *l) {
    Request *one = &l->requests[l->num_admitted];
    if (l->num_admitted - l->num_finished >= l->set.max_seqs || l->num_admitted == l->num_entered) return -1;
    if (one->blocks > l->free_blocks) return -1;
    l->free_blocks -= one->blocks;
    one->scheduled_s = l->device.now_s;
    change(&l->costs, &l->gauges[QUEUE], -1, l->device.now_s);
    return l->num_admitted++;
}

static void leave(Lanes *l, Count i) {
    const Request *one = &l->requests[i];
    hold_tokens(l, -(one->prompt + one->num_accepted + l->progress[i].next_round));
    l->free_blocks += one->blocks, l->num_finished++;
    l->changed += l->num_entered > l->num_admitted;
}

/* The first token is out. True where more are to come. */
static int commit_prompt(Lanes *l, Count i) {
    Request *one = &l->requests[i];
    hold_tokens(l, one->prompt);
    one->known_s = one->first_s = one->last_s = l->device.now_s;
    one->prefilled = one->goal = one->prompt;
    l->progress[i].emitted = 1;
    if (one->output <= 1) leave(l, i);
    return one->output > 1;
}

static void put(Lane *lane, Count i) { lane->at[lane->tail++ & lane->mask] = i, lane->version++; }
static void put_all(Lane *lane, Batch batch) { for (Count j = 0; j < batch.count; j++) put(lane, batch.at[j]); }
static Count length(const Lane *lane) { return lane->tail - lane->head; }

static void take(Lane *lane, Batch *batch, Count at_most) {
    for (batch->count = 0; batch->count < at_most && length(lane);)
        batch->at[batch->count++] = lane->at[lane->head++ & lane->mask];
    lane->version += batch->count > 0;
}

/* A round of `batch` is over: its tokens are out, and who is through leaves; the others stay in `batch`, or go on to `lane`. */
static void commit_round(Lanes *l, Batch *batch, Lane *lane) {
    Count draft_tokens = l->set.draft_tokens, held = 0, num_staying = 0;
    Alike alike = {0};
    for (Count j = 0; j < batch->count; j++) {
        Request *one = &l->requests[batch->at[j]];
        Progress *is = &l->progress[batch->at[j]];
        Count accepted = draft_tokens ? l->accepted[one->first_round + is->next_round] : 0;
        held += accepted - draft_tokens;
        is->next_round++, one->num_accepted += accepted, one->num_drafted += draft_tokens;
        one->num_rounds += draft_tokens > 0;
        one->needs_catch_up = draft_tokens > 0 && accepted == draft_tokens;
        if (one->is_measured) note_gap(&l->costs, &l->gaps, &alike, one->last_s, l->device.now_s);
        one->last_s = l->device.now_s;
        is->emitted += accepted + 1;
    }
    add_alike(&l->costs, &l->gaps, &alike, l->device.now_s);
    hold_tokens(l, held);
    for (Count j = 0; j < batch->count; j++) {
        Count i = batch->at[j];
        if (l->progress[i].emitted < l->requests[i].output) batch->at[num_staying++] = i;
        else leave(l, i);
    }
    batch->count = num_staying;
    if (lane != NULL) put_all(lane, *batch);
}

/* -- works (sim.policies.rounds and works) */

/* Seconds for which the next work of `who` on `stream` could be prepared. */
static double ahead_s(const Lanes *l, Batch who, int stream) {
    double known_s = l->device.queues[stream].submitted_s;
    if (!l->set.plans_ahead) return 0.0;
    for (Count j = 0; j < who.count; j++) known_s = larger(known_s, l->requests[who.at[j]].known_s);
    return l->device.now_s - known_s;
}

/* How much longer a launch takes beside workers that poll (in_service.ServiceCosts). */
static double looked(const Lanes *l) {
    Count num_polling = 0;
    for (const Task *t = l->tasks; l->set.look_s != 0.0 && t < l->tasks + l->num_tasks; t++)
        num_polling += t->changes != NULL && t->poll_s != 0.0 && *t->changes == t->seen;
    return num_polling ? smaller(1.0, l->set.look_s * (num_polling / l->set.poll_s)) : 0.0;
}

/* Submit a pass of `who`. The caller holds the op; NULL where memory is out. */
static Op *send(Lanes *l, int stream, int kind, int model, const Pass *p, Batch who, Op *after, double ahead) {
    Op op = {.kind = kind, .has_chunks = p->chunks->count > 0, .tokens = tokens_of(p)};
    Cost cost = work_cost(&l->costs, model, p, ahead, &op.prepare_s);
    op.launch_s = cost.launch_s * (1.0 + looked(l)), op.device_s = cost.device_s;
    op.kernels_per_s = op.has_chunks ? cost.turns : l->set.num_kernels[model] * (p->passes > 1 ? p->passes : 1);
    for (Count j = 0; l->set.plans_ahead && j < who.count; j++) l->requests[who.at[j]].known_s = l->device.now_s;
    l->device.queues[stream].submitted_s = l->device.now_s;
    Op *sent = put_on(&l->device, stream, &op, after);
    if (sent == NULL) run_out(&l->costs);
    return sent;
}

/* A prompt through a model, in passes within the budget; the last one. */
static Op *send_prompt(Lanes *l, Count request, int model, int stream) {
    Count prompt = l->requests[request].prompt;
    Batch who = {&request, 1};
    Op *op = NULL;
    for (Count done = 0; done < prompt; done += l->set.max_tokens) {
        Count left = prompt - done, new_tokens = fewer(left, l->set.max_tokens);
        Chunk chunk = {new_tokens, done, request};
        Chunks chunks = {1, new_tokens, done, new_tokens, done, &chunk};
        Pass pass = {.head_rows = !model && new_tokens == left, .chunks = &chunks};
        let_go(&l->device, op);
        op = send(l, stream, PREFILL, model, &pass, who, NULL, ahead_s(l, who, stream));
    }
    return op;
}

static Count context_of(const Lanes *l, Batch batch) {
    Count context = 0;
    for (Count j = 0; j < batch.count; j++)
        context += l->requests[batch.at[j]].prompt + l->progress[batch.at[j]].emitted - 1;
    return context;
}

static Op *send_draft(Lanes *l, Batch batch, int stream) {
    Pass pass = {.rows = batch.count, .row_tokens = batch.count, .context = context_of(l, batch), .head_rows = batch.count,
                 .passes = l->set.draft_tokens, .chunks = &NO_CHUNKS};
    for (Count j = 0; j < batch.count; j++) pass.row_tokens += l->requests[batch.at[j]].needs_catch_up;
    Op *op = send(l, stream, DRAFT, 1, &pass, batch, NULL, ahead_s(l, batch, stream));
    hold_tokens(l, batch.count * (l->set.draft_tokens + 1));
    return op;
}

static Op *send_verify(Lanes *l, Batch batch, int stream, Op *after, double ahead) {
    Count tokens = batch.count * (l->set.draft_tokens + 1);
    Pass pass = {.rows = batch.count, .row_tokens = tokens, .context = context_of(l, batch), .head_rows = tokens,
                 .chunks = &NO_CHUNKS};
    return send(l, stream, VERIFY, 0, &pass, batch, after, ahead);
}

/* A draft and its verify; without drafts a plain decode. */
static Op *send_round(Lanes *l, Batch batch, int draft_stream, int verify_stream) {
    if (!l->set.draft_tokens) {
        hold_tokens(l, batch.count);
        return send_verify(l, batch, verify_stream, NULL, ahead_s(l, batch, verify_stream));
    }
    double ahead = ahead_s(l, batch, draft_stream);
    Op *draft = send_draft(l, batch, draft_stream), *verify = send_verify(l, batch, verify_stream, draft, ahead);
    let_go(&l->device, draft);
    return verify;
}

/* -- coroutines */

#define BEGIN switch (t->line) { case 0:
#define END }
#define PAUSE do { t->line = __LINE__; return; case __LINE__:; } while (0)
/* Wait until a time. */
#define UNTIL(time_s) do { if ((time_s) > l->device.now_s) { t->wake_s = (time_s); PAUSE; } } while (0)
/* Wait until a count is another one: at once, or at the first of its looks every so many seconds that finds it so. */
#define CHANGE(count, every_s) do { \
    t->changes = &(count), t->seen = (count), t->poll_s = (every_s), t->since_s = l->device.now_s; \
    PAUSE; \
} while (0)
/* Wait until the result of a work is on the host, and hold the work no longer. No work: memory is out, and no task goes on. */
#define RESULT(op) do { \
    if ((op) == NULL) return; \
    if ((op)->ready_s > l->device.now_s) { t->waits_for[0] = (op); PAUSE; } \
    let_go(&l->device, op), (op) = NULL; \
} while (0)
/* Wait until somebody comes or leaves; nobody has prepared anything for who waits longest. */
#define CAME(every_s) do { \
    CHANGE(l->changed, every_s); \
    if (l->num_entered > l->num_admitted) l->requests[l->num_admitted].known_s = l->device.now_s; \
} while (0)
/* Wait until somebody is in a lane. */
#define FILLED(lane) do { \
    if (length(&(lane))) break; \
    while (!length(&(lane))) CHANGE((lane).version, l->set.poll_s); \
    know(l, &(lane)); \
} while (0)

/* Nothing is prepared for who comes from a prompt to an idle lane (rounds.filled). */
static void know(Lanes *l, const Lane *lane) {
    for (Count i = lane->head; i != lane->tail; i++) {
        Count request = lane->at[i & lane->mask];
        if (l->progress[request].emitted == 1 && lane == &l->decode) l->requests[request].known_s = l->device.now_s;
    }
}

/* Requests come at their times, or when a place is free (serving.bring_in). */
static void arrivals(Lanes *l, Task *t) {
    Request *one = &l->requests[l->num_come];
    Count places = l->set.max_concurrency;
    BEGIN
    for (; l->num_come < l->num_requests; one++) {
        UNTIL(one->arrival_s);
        while (places && l->num_come - l->num_finished >= places) CHANGE(l->num_finished, 0.0);
        if (places) one->arrival_s = larger(one->arrival_s, l->device.now_s);
        l->num_come++;
        if (delay_of(&l->costs.host, one) == 0.0) queue_up(l);
    }
    for (;;) PAUSE;
    END
}

/* The frontend passes arrivals on in their order (Intake.frontend). */
static void frontend(Lanes *l, Task *t) {
    BEGIN
    for (;;) {
        while (l->num_entered == l->num_come) CHANGE(l->num_come, 0.0);
        UNTIL(l->requests[l->num_entered].arrival_s + delay_of(&l->costs.host, &l->requests[l->num_entered]));
        queue_up(l);
    }
    END
}

/* One prompt after the other; the target's next one is submitted behind the draft model's (rounds.prefilled). */
static void prefill_lane(Lanes *l, Task *t) {
    int stream = l->device.num_streams - 1;
    BEGIN
    for (;;) {
        while ((t->request = admit(l)) < 0 && t->last < 0) CAME(l->set.poll_s);
        if (t->request >= 0) t->prompt = send_prompt(l, t->request, 0, stream);
        if (t->request >= 0 && l->set.draft_tokens) t->through = send_prompt(l, t->request, 1, stream);
        if (t->last >= 0) {
            RESULT(t->last_through);
            if (commit_prompt(l, t->last)) put(&l->decode, t->last);
            t->last = -1;
        }
        if (t->request < 0) continue;
        RESULT(t->prompt);
        if (l->set.draft_tokens) t->last = t->request, t->last_through = t->through, t->through = NULL;
        else if (commit_prompt(l, t->request)) put(&l->decode, t->request);
    }
    END
}

static void pd_decode_lane(Lanes *l, Task *t) {
    BEGIN
    for (;;) {
        FILLED(l->decode);
        take(&l->decode, &t->batch, l->set.rows_per_draft);
        t->round = send_round(l, t->batch, 0, 0);
        RESULT(t->round);
        commit_round(l, &t->batch, &l->decode);
    }
    END
}

static void pdv_decode_lane(Lanes *l, Task *t) {
    BEGIN
    for (;;) {
        FILLED(l->decode);
        take(&l->decode, &t->batch, l->set.rows_per_draft);
        if (l->num_admitted - l->num_finished <= l->set.hybrid_requests) {
            t->round = send_round(l, t->batch, 0, 1);
            RESULT(t->round);
            commit_round(l, &t->batch, &l->decode);
            continue;
        }
        while (length(&l->verify) > length(&l->decode) + t->batch.count + 2) CHANGE(l->verify.version, 0.0);
        t->round = send_draft(l, t->batch, 0);
        RESULT(t->round);
        put_all(&l->verify, t->batch);
    }
    END
}

static void pdv_verify_lane(Lanes *l, Task *t) {
    BEGIN
    for (;;) {
        FILLED(l->verify);
        take(&l->verify, &t->batch, l->set.rows_per_verify);
        t->round = send_verify(l, t->batch, 1, NULL, ahead_s(l, t->batch, 1));
        RESULT(t->round);
        commit_round(l, &t->batch, &l->decode);
    }
    END
}

static int is_ready(const Lanes *l, const Op *op) { return op != NULL && op->ready_s <= l->device.now_s; }

/* One worker keeps a prompt and a round in flight (sim.policies.unified). */
static void unified_worker(Lanes *l, Task *t) {
    BEGIN
    for (;;) {
        if (t->request < 0 && length(&l->decode) + t->batch.count + (t->last >= 0) < 1.2 * l->set.decode_batch
            && (t->request = admit(l)) >= 0) {
            t->prompt = send_prompt(l, t->request, 0, 2);
            if (l->set.draft_tokens) t->through = send_prompt(l, t->request, 1, 2);
        }
        if (t->round == NULL && length(&l->decode)) {
            take(&l->decode, &t->batch, l->set.rows_per_draft);
            t->round = send_round(l, t->batch, 0, 1);
        }
        t->waits_for[0] = t->round, t->waits_for[1] = t->last < 0 ? t->prompt : t->last_through;
        if (t->round == NULL && t->waits_for[1] == NULL) { CAME(l->set.poll_s); continue; }
        if (!is_ready(l, t->round) && !is_ready(l, t->waits_for[1])) PAUSE;
        if (is_ready(l, t->round)) {
            RESULT(t->round);
            commit_round(l, &t->batch, &l->decode);
            t->batch.count = 0;
        }
        if (t->last < 0 && is_ready(l, t->prompt)) {
            t->last = t->request, t->request = -1;
            if (l->set.draft_tokens) let_go(&l->device, t->prompt), t->last_through = t->through, t->through = NULL;
            else t->last_through = t->prompt;
            t->prompt = NULL;
        }
        if (is_ready(l, t->last_through)) {
            RESULT(t->last_through);
            if (commit_prompt(l, t->last)) put(&l->decode, t->last);
            t->last = -1;
        }
    }
    END
}

/* A worker takes one request end to end (sim.policies.baseline). */
static void baseline_worker(Lanes *l, Task *t) {
    BEGIN
    for (;;) {
        while ((t->request = admit(l)) < 0) CAME(0.0);
        t->through = send_prompt(l, t->request, 0, 0);
        if (l->set.draft_tokens) let_go(&l->device, t->through), t->through = send_prompt(l, t->request, 1, 0);
        RESULT(t->through);
        if (!commit_prompt(l, t->request)) continue;
        do {
            t->batch.at[0] = t->request, t->batch.count = 1;
            t->round = send_round(l, t->batch, 0, 0);
            RESULT(t->round);
            commit_round(l, &t->batch, NULL);
        } while (t->batch.count);
    }
    END
}

/* -- the clock */

static double due_s(const Task *t) {
    double at_s = t->wake_s;
    for (int i = 0; i < MOST_WAITS; i++)
        if (t->waits_for[i] != NULL) at_s = smaller(at_s, t->waits_for[i]->ready_s);
    return at_s;
}

static int is_due(const Lanes *l, const Task *t) {
    return due_s(t) <= l->device.now_s || (t->changes != NULL && t->poll_s == 0.0 && *t->changes != t->seen);
}

/* Workers that poll will find what has changed: the looks until then count, the last one wakes them. */
static void note_looks(Lanes *l) {
    double now_s = l->device.now_s;
    for (Task *t = l->tasks; t < l->tasks + l->num_tasks; t++) {
        if (t->changes == NULL || t->poll_s == 0.0 || *t->changes == t->seen) continue;
        double looks = larger(1.0, ceil((now_s - t->since_s) / t->poll_s - 1e-9));
        l->num_polls += (Count)looks;
        t->changes = NULL, t->wake_s = larger(now_s, t->since_s + looks * t->poll_s);
    }
}

/* Run all that is due now, who paused first before the others; what that makes due is due, too. */
static void run_due(Lanes *l) {
    for (;;) {
        Task *first = NULL;
        for (Task *t = l->tasks; t < l->tasks + l->num_tasks; t++)
            if ((first == NULL || t->post < first->post) && is_due(l, t)) first = t;
        if (first == NULL || l->costs.has_failed) return;
        first->wake_s = NEVER, first->changes = NULL;
        memset(first->waits_for, 0, sizeof first->waits_for);
        first->run(l, first);
        first->post = l->num_posts++;
    }
}

static int is_polled_now(const Lanes *l) {
    for (const Task *t = l->tasks; t < l->tasks + l->num_tasks; t++) if (is_due(l, t)) return 1;
    return 0;
}

/* True where all requests were served; else nothing could go on, or an exception is set. An instant is over when no task is
   due and no look of a worker that polls falls on it; the next one is the device's, or that of the first task that waits. */
static int serve_lanes(Lanes *l) {
    Device *d = &l->device;
    while (l->num_finished < l->num_requests) {
        do {
            run_due(l);
            note_looks(l);
        } while (is_polled_now(l) && !l->costs.has_failed);
        if (l->costs.has_failed) return 0;
        if (PyErr_CheckSignals() < 0) { l->costs.has_failed = 1; return 0; }
        double next_s = d->timer_s;
        for (const Task *t = l->tasks; t < l->tasks + l->num_tasks; t++) next_s = smaller(next_s, due_s(t));
        if (l->num_finished == l->num_requests || !(next_s >= d->now_s && next_s < NEVER)) break;
        d->now_s = next_s;
        if (d->timer_s <= next_s) update(d, 0);
    }
    return l->num_finished == l->num_requests;
}

/* -- setting up */

static int add_task(Lanes *l, void (*run)(Lanes *, Task *), Count batch) {
    Task *t = &l->tasks[l->num_tasks++];
    *t = (Task){.run = run, .wake_s = 0.0, .request = -1, .last = -1, .post = l->num_posts++};
    t->batch.at = PyMem_Malloc((batch + 1) * sizeof(Count));
    return t->batch.at != NULL;
}

static int begin_lane(Lane *lane, Count most) {
    for (lane->mask = 1; lane->mask < most; lane->mask = lane->mask << 1 | 1);
    lane->at = PyMem_Malloc((lane->mask + 1) * sizeof(Count));
    return lane->at != NULL;
}

/* Coroutines in the order in which they start (Experiment.start); 0 where memory is out. */
static int begin_lanes(Lanes *l) {
    const LaneSettings *set = &l->set;
    Device *d = &l->device;
    Count most = fewer(set->max_seqs, l->num_requests);
    int is_begun = begin_lane(&l->decode, most) && begin_lane(&l->verify, most);
    l->progress = PyMem_Calloc(l->num_requests + 1, sizeof(Progress));
    l->free_blocks = set->num_blocks;
    d->phi = set->phi, d->result_s = set->host.result_s, d->prompt_result_s = set->host.prompt_result_s;
    d->timer_s = NEVER, d->busy_since_s = -1.0, d->inflation[0] = 1.0;
    d->num_streams = set->policy == BASELINE ? 1 : set->policy == PD ? 2 : 3;
    for (int i = 1; i <= d->num_streams; i++) {
        d->inflation[i] = set->inflation[i - 1];
        for (int j = 1; j < i; j++) d->fewer_are_faster[i] |= d->inflation[i] != d->inflation[j];
    }
    if (delay_of(&l->costs.host, l->requests) != 0.0) is_begun &= add_task(l, frontend, 0);
    if (set->policy == PD) is_begun &= add_task(l, pd_decode_lane, most);
    if (set->policy == PDV) is_begun &= add_task(l, pdv_decode_lane, most) && add_task(l, pdv_verify_lane, most);
    if (set->policy == PD || set->policy == PDV) is_begun &= add_task(l, prefill_lane, 0);
    if (set->policy == UNIFIED) is_begun &= add_task(l, unified_worker, most);
    for (Count i = 0; set->policy == BASELINE && i < set->num_workers; i++) is_begun &= add_task(l, baseline_worker, 1);
    is_begun &= add_task(l, arrivals, 0);
    if (!is_begun || l->progress == NULL) run_out(&l->costs);
    return !l->costs.has_failed;
}

static Totals totals_of(const Lanes *l) {
    const Device *d = &l->device;
    Totals totals = {.now_s = d->now_s, .busy_s = d->busy_s, .num_polls = l->num_polls};
    for (int i = 0; i < d->num_streams; i++) memcpy(totals.usage[i], d->queues[i].usage, sizeof totals.usage[i]);
    return totals;
}

static void end_lanes(Lanes *l) {
    for (Task *t = l->tasks; t < l->tasks + l->num_tasks; t++) PyMem_Free(t->batch.at);
    PyMem_Free(l->decode.at), PyMem_Free(l->verify.at);
    PyMem_Free(l->progress), PyMem_Free(l->gaps.at);
    free_ops(&l->device);
}
