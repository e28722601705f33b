/* The one door to the server: nothing else calls fetch, or knows the session. */

export interface Workers { min: number; max: number; now: number }

export interface Job {
  name: string; project: string; state: string; reason: string; not_kept?: string[];
  created: number; started: number; ended: number; attempt: number; priority: number;
  workers: Workers; labels: Record<string, string>; spec?: any; files_removed?: string;
}

export interface JobEvent { seq: number; t: number; type: string; [key: string]: any }
export interface LogLine { t: number; stream: string; worker: number; text: string }
export type Series = [number, number, number][];          // time, step, value
export interface FileEntry { path: string; size: number; changed: number }
export interface Bucket { name: string; timeCreated?: string }
export interface StoredObject { name: string; size: string; updated: string; contentType: string }
export interface Listing { items?: StoredObject[]; prefixes?: string[]; nextPageToken?: string }

/* Documents of pipelines/catalog.h and pipelines/runs.h. */
export interface Input { name: string; type: string; default?: any; optional?: boolean; description?: string }
export interface Pipeline {
  id: string; project: string; name: string; display: string; description: string; created: number;
  default_version: string; version?: Version;
}
export interface Version {
  id: string; project: string; pipeline: string; name: string; description: string; created: number;
  dialect: string; inputs: Input[];
}
export interface Experiment {
  id: string; project: string; name: string; description: string; created: number; archived: boolean;
  last_run: number;
}
export interface Metric { name: string; node: string; value: number; format: string }
export interface Run {
  id: string; project: string; name: string; description: string; experiment: string; pipeline: string;
  version: string; state: string; message: string; created: number; started: number; ended: number;
  archived: boolean; parameters: Record<string, any>; metrics: Metric[]; nodes: number; done: number;
}
export interface Trigger { cron?: string; interval_s?: number; start?: number; end?: number }
export interface Recurring {
  id: string; project: string; name: string; experiment: string; pipeline: string; version: string; state: string;
  trigger: Trigger; max_concurrency: number; no_catchup: boolean; last: number; next: number; index: number;
  message: string;
}
export interface Artifact {
  uri: string; size: number; dir: boolean; type?: string; metadata?: any; name?: string;
}
export interface Values { parameters?: Record<string, any>; artifacts?: Record<string, Artifact>;
  result?: any; code?: any }
export interface Node {
  id: string; name: string; display: string; kind: string; phase: string; task: string; template: string;
  parent: string; message: string; started: number; ended: number; attempt: number;
  inputs?: Values; outputs?: Values; cached: boolean; job: string;
}
export interface Task { name: string; display?: string; template: string; after?: string[]; when?: string;
  loop?: object }
export interface Template { dag?: { tasks: Task[]; style?: string }; retry?: object; step?: any;
  suspend?: object; resource?: object; importer?: object }
export interface Flow { dialect: string; name: string; entry: string; exit?: string; inputs: Input[];
  templates: Record<string, Template> }
export interface Reason { node: string; name: string; cached: boolean; why: string; run?: string }

export class ApiError extends Error {
  constructor(public status: number, message: string) { super(message); }
}

/* The session is kept in the storage of this origin, which is scheme, host and port, and sent as a
   header: no other page has it, and the browser sends it nowhere by itself. */
const KEY = 'muster.session';
let held = '';                  // for a browser that has no storage
const session = {
  get: () => { try { return localStorage.getItem(KEY) ?? held; } catch { return held; } },
  set: (to: string) => {
    held = to;
    try { if (to) localStorage.setItem(KEY, to); else localStorage.removeItem(KEY); } catch { /* held */ }
  },
};

interface Sent { method?: string; body?: BodyInit; headers?: Record<string, string>; signal?: AbortSignal }

async function open(path: string, sent: Sent = {}): Promise<Response> {
  const own = session.get(), headers = { ...sent.headers };
  if (own) headers.Authorization = `Bearer ${own}`;
  let answer: Response;
  try {
    answer = await fetch(path, { ...sent, headers, credentials: 'omit', referrerPolicy: 'no-referrer' });
  } catch {
    throw new ApiError(0, 'The server does not answer.');
  }
  if (answer.status === 401 && session.get() === own) session.set('');
  return answer;
}

/* The same; what is not answered by 2xx is an error. */
async function good(path: string, sent: Sent = {}): Promise<Response> {
  const answer = await open(path, sent);
  if (!answer.ok) throw new ApiError(answer.status, answer.statusText);
  return answer;
}

async function call(method: string, path: string, body?: BodyInit, type?: string): Promise<any> {
  const answer = await open(path, { method, body, headers: type ? { 'Content-Type': type } : {} });
  const text = await answer.text();
  let doc: any = null;
  try { doc = text ? JSON.parse(text) : null; } catch { /* said below */ }
  if (answer.ok) return doc;
  const said = doc?.error?.message ?? doc?.error ?? text;
  throw new ApiError(answer.status, typeof said === 'string' && said ? said : answer.statusText);
}

const words = (path: string) => good(path).then((a) => a.text());

const get = (path: string) => call('GET', path);
const post = (path: string, doc: object = {}) =>
  call('POST', path, JSON.stringify(doc), 'application/json');

const enc = encodeURIComponent;
const query = (of: Record<string, string | number | undefined>) => {
  const parts = Object.entries(of).filter(([, v]) => v !== undefined && v !== '')
    .map(([k, v]) => `${enc(k)}=${enc(String(v))}`);
  return parts.length ? `?${parts.join('&')}` : '';
};
const jobPath = (project: string, name: string) => `/api/jobs/${enc(project)}/${enc(name)}`;
const objectPath = (bucket: string, name: string) => `/storage/v1/b/${enc(bucket)}/o/${enc(name)}`;

const runPath = (project: string, id: string) => `/api/runs/${enc(project)}/${enc(id)}`;
const nodePath = (project: string, id: string, node: string) => `${runPath(project, id)}/nodes/${enc(node)}`;
const pipelinePath = (project: string, id: string) => `/api/pipelines/${enc(project)}/${enc(id)}`;
const experimentPath = (project: string, id: string) => `/api/experiments/${enc(project)}/${enc(id)}`;

const recurringPath = (project: string, id: string) => `/api/recurring/${enc(project)}/${enc(id)}`;

interface Asked { text?: string; token?: string; limit?: number; archived?: string }

export interface RunRequest {
  project?: string; name?: string; experiment?: string; pipeline?: string; version?: string; text?: string;
  parameters: Record<string, any>; no_cache?: boolean;
}

export const api = {
  jobs: (q: { project?: string; state?: string; text?: string; token?: string; limit?: number }) =>
    get(`/api/jobs${query(q)}`) as Promise<{ jobs: Job[]; next: string }>,
  job: (project: string, name: string) => get(jobPath(project, name)) as Promise<Job>,
  events: (project: string, name: string, after = 0) =>
    get(`${jobPath(project, name)}/events${query({ after })}`) as Promise<{ events: JobEvent[] }>,
  scalars: (project: string, name: string) =>
    get(`${jobPath(project, name)}/scalars`) as Promise<Record<string, Series>>,
  files: (project: string, name: string) =>
    get(`${jobPath(project, name)}/files`) as Promise<{ files: FileEntry[] }>,
  fileUrl: (project: string, name: string, path: string) =>
    `${jobPath(project, name)}/files/${path.split('/').map(enc).join('/')}`,
  cancel: (project: string, name: string) => post(`${jobPath(project, name)}/cancel`),
  rerun: (project: string, name: string) => post(`${jobPath(project, name)}/rerun`) as Promise<Job>,
  logUrl: (project: string, name: string, of: { search?: string; tail?: number; follow?: number;
                                                    format?: string }) =>
    `${jobPath(project, name)}/logs${query(of)}`,
  runs: (q: Asked & { state?: string; experiment?: string }) =>
    get(`/api/runs${query({ ...q })}`) as Promise<{ runs: Run[]; next: string; total: number }>,
  run: (project: string, id: string) => get(runPath(project, id)) as Promise<Run>,
  start: (doc: RunRequest) => post('/api/runs', doc) as Promise<Run>,
  runDo: (project: string, id: string, what: string) => post(`${runPath(project, id)}/${what}`) as Promise<Run>,
  recurring: () =>
    get(`/api/recurring${query({ limit: 1000 })}`) as Promise<{ recurring: Recurring[]; total: number }>,
  startRecurring: (doc: RunRequest & { trigger: Trigger; max_concurrency: number; no_catchup: boolean }) =>
    post('/api/recurring', doc) as Promise<Recurring>,
  recurringDo: (project: string, id: string, what: string) =>
    post(`${recurringPath(project, id)}/${what}`) as Promise<Recurring>,
  removeRecurring: (project: string, id: string) => call('DELETE', recurringPath(project, id)),
  removeRun: (project: string, id: string) => call('DELETE', runPath(project, id)),
  watchUrl: (project: string, id: string) => `${runPath(project, id)}/watch`,
  flow: (project: string, id: string) => get(`${runPath(project, id)}/flow`) as Promise<Flow>,
  runText: (project: string, id: string) => words(`${runPath(project, id)}/text`),
  nodes: (project: string, id: string, brief = '') =>
    get(`${runPath(project, id)}/nodes${query({ brief })}`) as Promise<{ nodes: Node[] }>,
  node: (project: string, id: string, node: string) => get(nodePath(project, id, node)) as Promise<Node>,
  nodeScalars: (project: string, id: string, node: string) =>
    get(`${nodePath(project, id, node)}/scalars`) as Promise<Record<string, Series>>,
  explain: (project: string, id: string) =>
    get(`${runPath(project, id)}/explain`) as Promise<{ steps: Reason[] }>,
  artifactUrl: (project: string, id: string, node: string, name: string) =>
    `${nodePath(project, id, node)}/artifacts/${enc(name)}`,
  pageUrl: (project: string, id: string, node: string, name: string) =>
    `${nodePath(project, id, node)}/pages/${enc(name)}`,
  resume: (project: string, id: string, node: string) =>
    post(`${runPath(project, id)}/resume${query({ node })}`) as Promise<Run>,
  pipelines: (q: Asked) =>
    get(`/api/pipelines${query({ ...q })}`) as Promise<{ pipelines: Pipeline[]; next: string }>,
  pipeline: (project: string, id: string) => get(pipelinePath(project, id)) as Promise<Pipeline>,
  versions: (project: string, id: string) =>
    get(`${pipelinePath(project, id)}/versions`) as Promise<{ versions: Version[] }>,
  versionFlow: (project: string, id: string, version: string) =>
    get(`${pipelinePath(project, id)}/versions/${enc(version)}/flow`) as Promise<Flow>,
  versionText: (project: string, id: string, version: string) =>
    words(`${pipelinePath(project, id)}/versions/${enc(version)}/text`),
  addPipeline: (file: File, name: string) =>
    call('POST', `/api/pipelines${query({ name, file: file.name })}`, file, 'application/octet-stream') as
      Promise<Pipeline>,
  addVersion: (project: string, id: string, file: File, name: string) =>
    call('POST', `${pipelinePath(project, id)}/versions${query({ name, file: file.name })}`, file,
         'application/octet-stream') as Promise<Version>,
  setDefault: (project: string, id: string, version: string) =>
    post(`${pipelinePath(project, id)}/default`, { version }),
  removePipeline: (project: string, id: string) => call('DELETE', pipelinePath(project, id)),
  removeVersion: (project: string, id: string, version: string) =>
    call('DELETE', `${pipelinePath(project, id)}/versions/${enc(version)}`),
  experiments: (q: Asked) =>
    get(`/api/experiments${query({ ...q })}`) as Promise<{ experiments: Experiment[]; next: string }>,
  experiment: (project: string, id: string) => get(experimentPath(project, id)) as Promise<Experiment>,
  makeExperiment: (name: string) => post('/api/experiments', { name }) as Promise<Experiment>,
  experimentDo: (project: string, id: string, what: string) => post(`${experimentPath(project, id)}/${what}`),
  removeExperiment: (project: string, id: string) => call('DELETE', experimentPath(project, id)),
  login: async (token: string) => {
    const made = await post('/login', { token });
    if (session.get()) await post('/logout').catch(() => undefined);
    session.set(made.session);
  },
  logout: async () => {
    await post('/logout').catch(() => undefined);
    session.set('');
  },
  machine: () => get('/api/machine'),
  buckets: (project: string) =>
    get(`/storage/v1/b${query({ project })}`) as Promise<{ items?: Bucket[] }>,
  makeBucket: (project: string, name: string) => post(`/storage/v1/b${query({ project })}`, { name }),
  objects: (bucket: string, prefix: string, pageToken?: string) =>
    get(`/storage/v1/b/${enc(bucket)}/o${query({ prefix, delimiter: '/', maxResults: 200, pageToken })}`) as
      Promise<Listing>,
  upload: (bucket: string, name: string, file: File) =>
    call('POST', `/upload/storage/v1/b/${enc(bucket)}/o${query({ uploadType: 'media', name })}`, file,
         file.type || 'application/octet-stream'),
  remove: (bucket: string, name: string) => call('DELETE', objectPath(bucket, name)),
  /* Bytes of an object; fewer where it ends. */
  part: async (url: string, from: number, bytes: number) => {
    const answer = await open(url, { headers: { Range: `bytes=${from}-${from + bytes - 1}` } });
    if (answer.status === 416) return new Uint8Array();
    if (!answer.ok) throw new ApiError(answer.status, answer.statusText);
    return new Uint8Array(await answer.arrayBuffer());
  },
  mediaUrl: (bucket: string, name: string) =>
    `/download/storage/v1/b/${enc(bucket)}/o/${enc(name)}?alt=media`,
  /* The first bytes of something, as text. */
  head: (url: string, bytes: number) =>
    good(url, { headers: { Range: `bytes=0-${bytes - 1}` } }).then((a) => a.text()),
  blob: (url: string) => good(url).then((a) => a.blob()),
  /* The address for a frame, a picture or a download, which the browser fetches without our header: good
     for a minute, for this address alone. */
  ticketed: async (url: string): Promise<string> => {
    const at = new URL(url, location.origin), target = at.pathname + at.search;
    const { ticket } = await post('/api/tickets', { target });
    return `${target}${at.search ? '&' : '?'}ticket=${ticket}`;
  },
};

export async function download(url: string, name: string) {
  const link = document.createElement('a');
  link.href = await api.ticketed(url);
  link.download = name;
  link.click();
}

const AGAIN_MS = 1000;

/* One connection of server-sent events, to its end. */
async function events(url: string, last: string, signal: AbortSignal,
                      each: (kind: string, data: string, id: string) => void) {
  const headers: Record<string, string> = { Accept: 'text/event-stream' };
  if (last) headers['Last-Event-ID'] = last;
  const answer = await good(url, { headers, signal });
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = '';;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split('\n\n');
    text = parts.pop()!;
    for (const part of parts) {
      let kind = 'message', id = '';
      const data: string[] = [];
      for (const line of part.split('\n')) {
        const [, name, rest] = /^([^:]*):? ?(.*)$/.exec(line)!;
        if (name === 'data') data.push(rest);
        else if (name === 'event') kind = rest;
        else if (name === 'id') id = rest;
      }
      if (data.length) each(kind, data.join('\n'), id);
    }
  }
}

/* Server-sent events, connected again where they broke off. Returns how to stop. */
export function follow(url: string, each: (doc: any) => void): () => void {
  const stop = new AbortController();
  let last = '', ended = false;
  const run = async () => {
    while (!ended && !stop.signal.aborted) {
      try {
        await events(url, last, stop.signal, (kind, data, id) => {
          last = id || last;
          if (kind === 'end') ended = true;
          else if (!ended && !stop.signal.aborted) each(JSON.parse(data));
        });
      } catch (e) {
        const status = e instanceof ApiError ? e.status : 0;
        if (status >= 400 && status < 500) return;      // the page says why, where it matters
      }
      if (!ended) await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  };
  run();
  return () => stop.abort();
}
