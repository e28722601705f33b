/* Buckets: browse, upload, download, look at tables and pictures. */
import { useState } from 'preact/hooks';
import { api, StoredObject } from './api';
import { bytes, Download, Empty, Rows, Trouble, useLoaded } from './view';

const PROJECT = 'default';
const HEAD_BYTES = 64 * 1024;
const link = (bucket: string, path = '') => `#/buckets/${encodeURIComponent(bucket)}/${encodeURIComponent(path)}`;

export function Buckets() {
  const { value, error, again } = useLoaded(() => api.buckets(PROJECT), []);
  const [name, setName] = useState('');
  const [said, setSaid] = useState('');
  const make = (e: Event) => {
    e.preventDefault();
    api.makeBucket(PROJECT, name).then(() => { setName(''); setSaid(''); again(); }, (x) => setSaid(x.message));
  };
  const items = value?.items ?? [];
  return <main>
    <header class="bar"><h1>Buckets</h1>
      <form onSubmit={make}><input placeholder="new-bucket" aria-label="Name of a new bucket" value={name}
        onInput={(e) => setName(e.currentTarget.value)} /> <button disabled={!name}>Make</button></form>
    </header>
    <Trouble error={error} />
    {said && <p class="trouble" role="alert">{said}</p>}
    {value && !items.length && <Empty>No buckets yet. Make one here, or: <code>muster storage mb gs://data</code></Empty>}
    <table class="list"><Rows>{items.map((b) => <tr key={b.name}>
      <td><a data-row href={link(b.name)}>{b.name}</a></td><td class="wide num">{b.timeCreated ?? ''}</td></tr>)}
    </Rows></table>
  </main>;
}

/* RFC 4180, as far as a preview needs it. */
export function parseCsv(text: string, rows: number): string[][] {
  const out: string[][] = [];
  let row: string[] = [], field = '', quoted = false;
  for (let i = 0; i < text.length && out.length < rows; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') field += c;
      else if (text[i + 1] === '"') { field += '"'; i++; }
      else quoted = false;
    } else if (c === '"') quoted = true;
    else if (c === ',') { row.push(field); field = ''; }
    else if (c === '\n') { row.push(field.replace(/\r$/, '')); out.push(row); row = []; field = ''; }
    else field += c;
  }
  return out;
}

function Preview({ bucket, name, type }: { bucket: string; name: string; type: string }) {
  const url = api.mediaUrl(bucket, name);
  const image = /\.(png|jpe?g|gif|webp)$/i.test(name);
  const text = /^text\/|json|yaml/.test(type) || /\.(csv|txt|jsonl?|ya?ml|md|log|py)$/i.test(name);
  const { value, error } = useLoaded(() => text && !image ? api.head(url, HEAD_BYTES) : Promise.resolve(''), [url]);
  let what = <Empty>No preview for {type || 'this'}.</Empty>;
  const { value: picture } = useLoaded(() => image ? api.ticketed(url) : Promise.resolve(''), [url]);
  if (image) what = picture ? <img src={picture} alt={name} /> : <Empty>…</Empty>;
  else if (/\.csv$/i.test(name) && value) {
    const [head, ...rows] = parseCsv(value, 51);
    what = <div class="scroll"><table class="list csv"><thead><tr>{(head ?? []).map((c) => <th>{c}</th>)}</tr></thead>
      <tbody>{rows.map((r) => <tr>{r.map((c) => <td>{c}</td>)}</tr>)}</tbody></table></div>;
  } else if (text) what = <pre>{value}</pre>;
  return <section class="preview"><header class="bar"><h2>{name}</h2>
    <Download of="" url={url} name={name.split('/').pop()!}>Download</Download></header>
    <Trouble error={error} />{what}</section>;
}

export function Bucket({ bucket, path }: { bucket: string; path: string }) {
  const { value, error, again } = useLoaded(() => api.objects(bucket, path), [bucket, path]);
  const [shown, setShown] = useState<StoredObject | null>(null);
  const [said, setSaid] = useState('');
  const upload = async (files: FileList | null) => {
    for (const file of files ?? []) {
      setSaid(`Uploading ${file.name}…`);
      try { await api.upload(bucket, path + file.name, file); setSaid(''); }
      catch (e) { setSaid((e as Error).message); break; }
    }
    again();
  };
  const remove = (o: StoredObject) => {
    if (confirm(`Delete ${o.name}?`)) api.remove(bucket, o.name).then(again, (e) => setSaid(e.message));
  };
  const parts = path.split('/').filter(Boolean);
  return <main onDragOver={(e) => e.preventDefault()}
               onDrop={(e) => { e.preventDefault(); upload(e.dataTransfer?.files ?? null); }}>
    <header class="bar">
      <h1><a href="#/buckets">Buckets</a> / <a href={link(bucket)}>{bucket}</a>
        {parts.map((p, i) => <> / <a href={link(bucket, parts.slice(0, i + 1).join('/') + '/')}>{p}</a></>)}</h1>
      <label class="button">Upload<input type="file" multiple hidden
        onChange={(e) => upload(e.currentTarget.files)} /></label>
    </header>
    <Trouble error={error} />
    {said && <p class="reason" role="status">{said}</p>}
    <table class="list"><Rows>
      {(value?.prefixes ?? []).map((p) => <tr key={p}><td><a data-row href={link(bucket, p)}>{p.slice(path.length)}</a></td>
        <td></td><td></td></tr>)}
      {(value?.items ?? []).map((o) => <tr key={o.name}>
        <td><a data-row href={link(bucket, path)} onClick={(e) => { e.preventDefault(); setShown(o); }}>
          {o.name.slice(path.length)}</a></td>
        <td class="num">{bytes(Number(o.size))}</td>
        <td class="num"><button class="quiet" aria-label={`delete ${o.name}`} onClick={() => remove(o)}>×</button></td></tr>)}
    </Rows></table>
    {value && !value.items?.length && !value.prefixes?.length && <Empty>Nothing here. Drop files on this page.</Empty>}
    {shown && <Preview bucket={bucket} name={shown.name} type={shown.contentType} />}
  </main>;
}
