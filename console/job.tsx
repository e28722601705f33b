/* One job: what happened, what it prints, its curves, what it left. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api, follow, Job, JobEvent, LogLine } from './api';
import { lasted } from './jobs';
import { Plot } from './plot';
import { bytes, clock, Download, Empty, span, State, Trouble, useLoaded } from './view';

const ENDED = ['succeeded', 'failed', 'cancelled'];
const LINES_MAX = 5000;         // older ones leave the page, not the server

function TimeLine({ job, events }: { job: Job; events: JobEvent[] }) {
  const from = job.created, to = job.ended || Date.now() / 1000, width = Math.max(to - from, 0.001);
  const x = (t: number) => `${(100 * (t - from) / width).toFixed(2)}%`;
  const counts = events.filter((e) => typeof e.workers === 'number' || e.type === 'job.ended');
  const most = Math.max(1, ...counts.map((e) => e.workers ?? 0));
  return <section>
    <h2>Time line</h2>
    <div class="timeline" role="img" aria-label="workers over time">
      {counts.map((e, i) => {
        const end = counts[i + 1]?.t ?? to;
        return e.workers ? <i class="span" style={{ left: x(e.t), width: `${100 * (end - e.t) / width}%`,
          height: `${100 * e.workers / most}%` }} title={`${e.workers} workers from ${clock(e.t)}`} /> : null;
      })}
      {events.map((e) => <b class={`mark ${e.type.replace('.', '-')}`} style={{ left: x(e.t) }}
                            title={`${e.type} ${clock(e.t)}`} />)}
    </div>
    <details>
      <summary>{events.length} events</summary>
      <ol class="events">{events.map((e) => {
        const { seq, t, type, spec, ...rest } = e;
        return <li key={seq}><time>{clock(t)}</time> <span class="faint">+{span(t - from)}</span> {type}{' '}
          <code>{Object.keys(rest).length ? JSON.stringify(rest) : ''}</code></li>;
      })}</ol>
    </details>
  </section>;
}

export function Log({ job }: { job: { project: string; name: string } }) {
  const [lines, setLines] = useState<LogLine[]>([]);
  const [search, setSearch] = useState('');
  const [sticks, setSticks] = useState(true);
  const box = useRef<HTMLPreElement>(null);
  const fresh = useRef<LogLine[]>([]);

  useEffect(() => {
    setLines([]);
    fresh.current = [];
    const stop = follow(api.logUrl(job.project, job.name, { search, tail: 1000, follow: 1 }),
                        (line) => fresh.current.push(line));
    const timer = setInterval(() => {   // a page a tenth of a second, however much is printed
      if (!fresh.current.length) return;
      const more = fresh.current;
      fresh.current = [];
      setLines((old) => old.concat(more).slice(-LINES_MAX));
    }, 100);
    return () => { stop(); clearInterval(timer); };
  }, [job.project, job.name, search]);
  useEffect(() => {
    if (sticks && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);

  const scrolled = () => {
    const b = box.current!;
    setSticks(b.scrollHeight - b.scrollTop - b.clientHeight < 40);
  };
  return <section>
    <header class="bar">
      <h2>Log</h2>
      <input type="search" placeholder="Search the log" aria-label="Search the log" value={search}
             onInput={(e) => setSearch(e.currentTarget.value)} />
      <Download of="link right" name={`${job.name}.log`}
                url={api.logUrl(job.project, job.name, { format: 'text' })}>whole log</Download>
    </header>
    <pre class="log" ref={box} onScroll={scrolled} tabIndex={0}>
      {lines.map((l) => <div class={`line ${l.stream}`}><time>{clock(l.t)}</time>{l.text}</div>)}
      {!lines.length && <span class="faint">{search ? 'No such line.' : 'Nothing printed yet.'}</span>}
    </pre>
  </section>;
}

function Curves({ job }: { job: Job }) {
  const every = ENDED.includes(job.state) ? 0 : 1000;
  const { value } = useLoaded(() => api.scalars(job.project, job.name), [job.project, job.name, every], every);
  const tags = Object.keys(value ?? {}).sort();
  if (!tags.length) return null;
  return <section>
    <h2>Metrics</h2>
    <div class="plots">{tags.map((t) => <Plot key={t} title={t} names={[t]} curves={[value![t]]} />)}</div>
  </section>;
}

function Files({ job }: { job: Job }) {
  const { value } = useLoaded(() => api.files(job.project, job.name), [job.project, job.name, job.state]);
  if (!value?.files.length) return null;
  return <section>
    <details open={value.files.length < 20}>
      <summary><h2>Files ({value.files.length})</h2></summary>
      <table class="list"><tbody>{value.files.map((f) => <tr>
        <td><Download url={api.fileUrl(job.project, job.name, f.path)} name={f.path.split('/').pop()!}>
          {f.path}</Download></td>
        <td class="num">{bytes(f.size)}</td><td class="num wide">{clock(f.changed)}</td>
      </tr>)}</tbody></table>
    </details>
  </section>;
}

function Asked({ job }: { job: Job }) {
  const spec = job.spec ?? {};
  const text = useMemo(() => spec.train?.spec ?? JSON.stringify(spec, null, 2), [spec]);
  const args: string[] = spec.python?.args ?? spec.command ?? [];
  return <section>
    <details>
      <summary><h2>What was asked</h2></summary>
      {args.length > 0 && <p><code>{args.join(' ')}</code></p>}
      <pre>{text}</pre>
    </details>
  </section>;
}

export function OneJob({ project, name }: { project: string; name: string }) {
  const [ended, setEnded] = useState(false);
  const { value: job, error, again } = useLoaded(() => api.job(project, name), [project, name, ended],
                                                 ended ? 0 : 500);
  const { value: log } = useLoaded(() => api.events(project, name), [project, name, job?.state, ended],
                                   ended ? 0 : 1000);
  const [said, setSaid] = useState('');

  useEffect(() => setEnded(!!job && ENDED.includes(job.state)), [job?.state]);
  if (error && !job) return <main><Trouble error={error} /></main>;
  if (!job) return <main><Empty>…</Empty></main>;

  const cancel = () => api.cancel(project, name).then(again, (e) => setSaid(e.message));
  const rerun = () => api.rerun(project, name).then(
    (j) => { location.hash = `#/jobs/${encodeURIComponent(j.project)}/${encodeURIComponent(j.name)}`; },
    (e) => setSaid(e.message));
  return <main>
    <header class="bar">
      <h1>{job.name}</h1><State of={job.state} />
      <span class="faint">{job.project} · {lasted(job)}{job.workers.now ? ` · ${job.workers.now} workers` : ''}
        {job.attempt > 1 ? ` · attempt ${job.attempt}` : ''}</span>
      <span class="right">
        {!ENDED.includes(job.state) && <button class="danger" disabled={job.state === 'cancelling'} onClick={cancel}>
          Cancel</button>}
        <button onClick={rerun}>Run again</button>
      </span>
    </header>
    {job.reason && <p class="reason">{job.reason}</p>}
    {job.files_removed && <p class="reason">{job.files_removed}</p>}
    {job.not_kept?.map(text => <p class="faint" key={text}>Not kept on this machine: {text}.</p>)}
    {said && <p class="trouble" role="alert">{said}</p>}
    <TimeLine job={job} events={log?.events ?? []} />
    <Curves job={job} />
    <Log job={job} />
    <Files job={job} />
    <Asked job={job} />
  </main>;
}
