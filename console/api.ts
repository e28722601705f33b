/* The one door to the server: nothing else calls fetch. */

export interface Workers { min: number; max: number; now: number }

export interface Job {
  name: string; project: string; state: string; reason: string;
  created: number; started: number; ended: number; attempt: number; priority: number;
  workers: Workers; labels: Record<string, string>; spec?: any;
}

export interface JobEvent { seq: number; t: number; type: string; [key: string]: any }
export interface LogLine { t: number; stream: string; worker: number; text: string }
export type Series = [number, number, number][];          // time, step, value
export interface FileEntry { path: string; size: number; changed: number }
export interface Bucket { name: string; timeCreated?: string }
export interface StoredObject { name: string; size: string; updated: string; contentType: string }
export interface Listing { items?: StoredObject[]; prefixes?: string[]; nextPageToken?: string }

export class ApiError extends Error {
  constructor(public status: number, message: string) { super(message); }
}

async function call(method: string, path: string, body?: BodyInit, type?: string): Promise<any> {
  const headers: Record<string, string> = method === 'GET' ? {} : { 'X-Muster': '1' };
  if (type) headers['Content-Type'] = type;
  let answer: Response;
  try {
    answer = await fetch(path, { method, headers, body, credentials: 'same-origin' });
  } catch {
    throw new ApiError(0, 'The server does not answer.');
  }
  const text = await answer.text();
  let doc: any = null;
  try { doc = text ? JSON.parse(text) : null; } catch { /* said below */ }
  if (answer.ok) return doc;
  const said = doc?.error?.message ?? doc?.error ?? text;
  throw new ApiError(answer.status, typeof said === 'string' && said ? said : answer.statusText);
}

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
  login: (token: string) => post('/login', { token }),
  logout: () => post('/logout'),
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
  mediaUrl: (bucket: string, name: string) =>
    `/download/storage/v1/b/${enc(bucket)}/o/${enc(name)}?alt=media`,
  /* The first bytes of something, as text. */
  head: async (url: string, bytes: number) => {
    const answer = await fetch(url, { headers: { Range: `bytes=0-${bytes - 1}` }, credentials: 'same-origin' });
    if (!answer.ok) throw new ApiError(answer.status, answer.statusText);
    return answer.text();
  },
};

/* Server-sent events; the browser connects again by itself. Returns how to stop. */
export function follow(url: string, each: (doc: any) => void, broken?: () => void): () => void {
  const source = new EventSource(url);
  source.onmessage = (e) => each(JSON.parse(e.data));
  source.addEventListener('end', () => source.close());
  if (broken) source.onerror = broken;
  return () => source.close();
}
