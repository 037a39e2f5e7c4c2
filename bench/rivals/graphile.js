// graphile-worker with its local queue and batched completion. `produce`, or `work CONCURRENCY`. The same board and the same producer's lines as
// board.py and producing.py have; the database is named by the PG* variables.
const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const { createRequire } = require("node:module");

const peer = createRequire(path.join(process.env.PEERS_NODE, "node_modules", "x.js"));
const { run, makeWorkerUtils, Logger } = peer("graphile-worker");
const { Client } = peer("pg");

const CHUNK = 1000;
const PAD = "x".repeat(62);
const logger = new Logger(() => () => {});
const monotonic = () => Number(process.hrtime.bigint()) / 1e9; // the clock of Python's time.monotonic
const payload = (i) => ({ i, t: monotonic(), pad: PAD });

// Node cannot map a file, and a system call per job would be charged to graphile-worker alone: hits are kept in memory
// and the part that changed is written every few milliseconds.
function openBoard() {
  const jobs = Number(process.env.PEERS_JOBS);
  const file = fs.openSync(path.join(process.env.PEERS_BOARD, `${process.pid}.board`), "w+");
  fs.ftruncateSync(file, 9 * jobs);
  const times = new Float64Array(jobs);
  const counts = new Uint8Array(jobs);
  let [low, high] = [jobs, -1];
  const flush = () => {
    if (high < low) return;
    fs.writeSync(file, new Uint8Array(times.buffer, 8 * low, 8 * (high - low + 1)), 0, undefined, 8 * low);
    fs.writeSync(file, counts.subarray(low, high + 1), 0, undefined, 8 * jobs + low);
    [low, high] = [jobs, -1];
  };
  setInterval(flush, 5).unref();
  process.on("exit", flush);
  return (i) => {
    if (!times[i]) times[i] = monotonic();
    counts[i] += 1;
    if (i < low) low = i;
    if (i > high) high = i;
  };
}

async function work(concurrency) {
  const hit = openBoard();
  const worker = {
    concurrentJobs: concurrency,
    maxPoolSize: concurrency + 1,
    pollInterval: 2000,
    localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    logger,
  };
  await run({ preset: { worker }, taskList: { hit: async (job) => hit(job.i) } });
}

class Producer {
  async open() {
    this.utils = await makeWorkerUtils({ logger });
    await this.utils.migrate();
    this.db = new Client();
    await this.db.connect();
  }
  async purge() {
    await this.db.query("truncate graphile_worker._private_jobs");
    return {};
  }
  async unfinished() {
    const found = await this.db.query("select count(*)::int as n from graphile_worker._private_jobs");
    return { unfinished: found.rows[0].n };
  }
  async single({ jobs, first = 0 }) {
    const payloads = Array.from({ length: jobs }, (_, k) => payload(first + k));
    const began = monotonic();
    for (const job of payloads) await this.utils.addJob("hit", job);
    return { seconds: monotonic() - began };
  }
  async bulk({ jobs }) {
    const payloads = Array.from({ length: jobs }, (_, i) => payload(i));
    const began = monotonic();
    for (let k = 0; k < jobs; k += CHUNK) {
      const chunk = payloads.slice(k, k + CHUNK);
      await this.utils.addJobs(chunk.map((job) => ({ identifier: "hit", payload: job })));
    }
    return { seconds: monotonic() - began };
  }
  async paced({ jobs, rate }) {
    const sent = [];
    let due = monotonic();
    for (let i = 0; i < jobs; i += 1) {
      await new Promise((go) => setTimeout(go, Math.max(0, 1000 * (due - monotonic()))));
      due += 1 / rate;
      const job = payload(i);
      sent.push(job.t);
      await this.utils.addJob("hit", job);
    }
    return { sent };
  }
}

async function produce() {
  const producer = new Producer();
  await producer.open();
  console.log(JSON.stringify({ ready: true }));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    console.log(JSON.stringify(await producer[request.do](request)));
  }
  process.exit(0);
}

const [role, concurrency] = process.argv.slice(2);
(role === "produce" ? produce() : work(Number(concurrency))).catch((error) => {
  console.error(error);
  process.exit(1);
});
