/* What the pages share: loading, times, states, the table that keys move in. */
import { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, download } from './api';

/* Loads now, when `deps` change, and every `every` ms while the page is looked at. */
export function useLoaded<T>(load: () => Promise<T>, deps: any[], every = 0) {
  const [value, setValue] = useState<T | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let live = true;
    const once = () => load().then(
      (v) => { if (live) { setValue(v); setError(null); } },
      (e) => { if (live) setError(e); });
    once();
    const timer = every ? setInterval(() => { if (!document.hidden) once(); }, every) : 0;
    return () => { live = false; clearInterval(timer); };
  }, [...deps, round]);
  return { value, error, again: () => setRound((r) => r + 1) };
}

export function Trouble({ error }: { error: ApiError | null }) {
  if (!error) return null;
  return <p class="trouble" role="alert">
    {error.status === 401 || error.status === 403
      ? 'Not logged in: open the link that `muster serve` printed.' : error.message}
  </p>;
}

/* Saves what is at `url` under this name. */
export function Download({ url, name, of = 'link', children }:
                         { url: string; name: string; of?: string; children: ComponentChildren }) {
  const [error, setError] = useState<ApiError | null>(null);
  const save = () => download(url, name).then(() => setError(null), setError);
  return <><button type="button" class={of} onClick={save}>{children}</button><Trouble error={error} /></>;
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function State({ of }: { of: string }) {
  return <span class={`state ${of}`}>{of}</span>;
}

const two = (n: number) => String(n).padStart(2, '0');

export function clock(t: number) {
  if (!t) return '';
  const d = new Date(t * 1000), now = new Date();
  const time = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return d.toDateString() === now.toDateString() ? time
    : `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${time}`;
}

export function span(seconds: number) {
  if (!(seconds >= 0)) return '';
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const s = Math.floor(seconds);
  return s < 3600 ? `${Math.floor(s / 60)} min ${s % 60} s`
    : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

export function bytes(n: number) {
  for (const unit of ['B', 'kB', 'MB', 'GB']) {
    if (n < 1000) return `${unit === 'B' ? n : n.toFixed(1)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

/* Rows of links: j and k move, Enter opens (a link's own doing). */
export function Rows({ children }: { children: ComponentChildren }) {
  const body = useRef<HTMLTableSectionElement>(null);
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if ((e.key !== 'j' && e.key !== 'k') || typing(e)) return;
      const links = [...(body.current?.querySelectorAll<HTMLElement>('a[data-row]') ?? [])];
      const at = links.indexOf(document.activeElement as HTMLElement);
      links[Math.max(0, Math.min(links.length - 1, at + (e.key === 'j' ? 1 : -1)))]?.focus();
    };
    addEventListener('keydown', key);
    return () => removeEventListener('keydown', key);
  }, []);
  return <tbody ref={body}>{children}</tbody>;
}

export function typing(e: KeyboardEvent) {
  const tag = (e.target as HTMLElement).tagName;
  return e.ctrlKey || e.metaKey || e.altKey || tag === 'INPUT' || tag === 'SELECT' || tag === 'TEXTAREA';
}
