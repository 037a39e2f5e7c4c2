-- Figures by the minute. Histograms are objects of counts by bucket, {"12": 3}: few of the 144 are ever in use.

-- What pods reported in the last minutes, before the leader adds it up.
create table forge.metric_part (
    minute    timestamptz not null,
    pod       integer not null,
    queue     text collate "C" not null,
    completed bigint not null default 0,
    failed    bigint not null default 0,
    throttled bigint not null default 0,
    snoozed   bigint not null default 0,
    crashed   bigint not null default 0,
    cancelled bigint not null default 0,
    dead      bigint not null default 0,
    reaped    bigint not null default 0,
    latency   jsonb not null default '{}',
    run_time  jsonb not null default '{}',
    primary key (minute, pod, queue)
);

-- The cluster's: what pods reported, added up, and below it what only the database knows, kept by the leader.
create table forge.metric (
    minute    timestamptz not null,
    queue     text collate "C" not null,
    completed bigint not null default 0,
    failed    bigint not null default 0,
    throttled bigint not null default 0,
    snoozed   bigint not null default 0,
    crashed   bigint not null default 0,
    cancelled bigint not null default 0,
    dead      bigint not null default 0,
    reaped    bigint not null default 0,
    latency   jsonb not null default '{}',
    run_time  jsonb not null default '{}',
    enqueued  bigint,
    pending   bigint,                    -- null: nobody looked
    scheduled bigint,
    in_flight bigint,
    retrying  bigint,
    dead_jobs bigint,
    oldest    double precision,
    estimated boolean,
    primary key (minute, queue)
);

-- Each pod's own.
create table forge.metric_pod (
    minute      timestamptz not null,
    pod         integer not null,
    host        text not null,
    pid         integer not null,
    workers     integer not null,
    connections integer not null,
    master_cpu  double precision, zygote_cpu double precision, workers_cpu double precision,
    master_rss  bigint, zygote_rss bigint, workers_rss bigint,
    master_pss  bigint, zygote_pss bigint, workers_pss bigint,
    claims      jsonb not null default '{}',
    finalizes   jsonb not null default '{}',
    beats       jsonb not null default '{}',
    primary key (minute, pod)
);

create table forge.metric_database (
    minute       timestamptz primary key,
    size         bigint not null,
    job_size     bigint,
    history_size bigint,
    job_dead     bigint,
    history_dead bigint
);

-- The last report of each process that was taken.
create table forge.metric_writer (
    writer  text collate "C" primary key,
    number  bigint not null,
    at      timestamptz not null default now()
);

create function forge.add_counts(a jsonb, b jsonb) returns jsonb language sql immutable parallel safe as $$
    select coalesce(jsonb_object_agg(s.key, s.n), '{}')
      from (select e.key, sum(e.value::bigint) as n
              from (select * from jsonb_each_text(a) union all select * from jsonb_each_text(b)) e group by e.key) s
$$;
