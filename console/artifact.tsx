/* What a step left, looked at: tables, pictures, text, pages in a frame that can do nothing, curves
   and matrices of classifiers. Steps are not trusted: nothing of theirs becomes HTML of this page. */
import { ComponentChildren } from 'preact';
import { api, Artifact } from './api';
import { parseCsv } from './buckets';
import { Markdown } from './markdown';
import { members } from './tar';
import { bytes, Download, Empty, Trouble, useLoaded } from './view';

const HEAD_BYTES = 256 * 1024, PICTURE_MAX = 8 << 20, ROWS = 51, MEMBERS = 200;

export interface Place { project: string; run: string; node: string }

/* ---------------------------------------------------------------- of classifiers */

export function Roc({ points }: { points: [number, number][] }) {
  const path = points.map(([x, y], i) => `${i ? 'L' : 'M'}${(30 + 200 * x).toFixed(1)} ${(210 - 200 * y).toFixed(1)}`);
  return <svg class="roc" viewBox="0 0 240 240" role="img" aria-label="ROC curve">
    <rect x={30} y={10} width={200} height={200} />
    <path class="even" d="M30 210L230 10" />
    <path class="curve" d={path.join('')} />
    <text x={130} y={228}>false positive rate</text>
    <text transform="translate(18,110) rotate(-90)">true positive rate</text>
  </svg>;
}

export function Matrix({ labels, rows }: { labels: string[]; rows: number[][] }) {
  const most = Math.max(1, ...rows.flat());
  return <div class="scroll"><table class="matrix" aria-label="Confusion matrix">
    <thead><tr><th>true \ told</th>{labels.map((l) => <th>{l}</th>)}</tr></thead>
    <tbody>{rows.map((r, i) => <tr><th>{labels[i]}</th>{r.map((v) =>
      <td><i style={{ opacity: String(0.75 * v / most) }} /><span>{v}</span></td>)}</tr>)}</tbody>
  </table></div>;
}

function Table({ rows }: { rows: string[][] }) {
  const [head, ...rest] = rows;
  return <div class="scroll"><table class="list csv"><thead><tr>{(head ?? []).map((c) => <th>{c}</th>)}</tr></thead>
    <tbody>{rest.map((r) => <tr>{r.map((c) => <td>{c}</td>)}</tr>)}</tbody></table></div>;
}

/* kfp 2 keeps these in the metadata of the artifact, at times one level down. */
function Classifier({ metadata }: { metadata: any }) {
  const curve = metadata?.confidenceMetrics?.list ?? metadata?.confidenceMetrics;
  const matrix = metadata?.confusionMatrix?.struct ?? metadata?.confusionMatrix;
  const points: [number, number][] = Array.isArray(curve)
    ? curve.map((p: any) => [Number(p.falsePositiveRate ?? 0), Number(p.recall ?? 0)]) : [];
  points.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  return <>
    {points.length > 0 && <Roc points={points} />}
    {Array.isArray(matrix?.rows) && <Matrix rows={matrix.rows.map((r: any) => (r.row ?? r).map(Number))}
      labels={(matrix.annotationSpecs ?? []).map((a: any) => String(a.displayName ?? a))} />}
  </>;
}

/* ---------------------------------------------------------------- mlpipeline-ui-metadata of kfp 1 */

const csvRows = (text: string) => parseCsv(text.endsWith('\n') ? text : `${text}\n`, 10000);

function fromRows(rows: string[][], order: string[]) {
  const at = new Map(order.map((l, i) => [l, i]));
  const cells = order.map(() => order.map(() => 0));
  for (const [a, b, n] of rows)
    if (at.has(a) && at.has(b)) cells[at.get(a)!][at.get(b)!] = Number(n);
  return cells;
}

/* Where its bytes are: in the document, or an object of this server. */
function textOf(output: any): Promise<string> {
  if (output.storage === 'inline') return Promise.resolve(String(output.source ?? ''));
  const at = /^(?:gs|minio|s3):\/\/([^/]+)\/(.+)$/.exec(String(output.source));
  return at ? api.head(api.mediaUrl(at[1], at[2]), 4 * HEAD_BYTES)
    : Promise.reject(new Error(`${output.source}: not an object of this server`));
}

function Output({ output }: { output: any }) {
  const { value, error } = useLoaded(() => output.type === 'tensorboard' ? Promise.resolve('') : textOf(output),
                                     [JSON.stringify(output)]);
  if (error) return <Trouble error={error} />;
  if (value === null) return null;
  const names = (output.schema ?? []).map((s: any) => s.name);
  if (output.type === 'markdown') return <Markdown text={value} />;
  if (output.type === 'table')
    return <Table rows={(output.header ? [output.header] : []).concat(csvRows(value).slice(0, ROWS))} />;
  if (output.type === 'web-app') return <iframe class="frame" sandbox="" srcdoc={value} title="page of the step" />;
  if (output.type === 'confusion_matrix') {
    const rows = csvRows(value), labels = (output.labels ?? [...new Set(rows.map((r) => r[0]))]).map(String);
    return <Matrix labels={labels} rows={fromRows(rows, labels)} />;
  }
  if (output.type === 'roc') {
    const x = Math.max(0, names.indexOf('fpr')), y = names.includes('tpr') ? names.indexOf('tpr') : 1;
    return <Roc points={csvRows(value).map((r) => [Number(r[x]), Number(r[y])])} />;
  }
  if (output.type === 'tensorboard') return <p class="faint">TensorBoard files: {String(output.source)}</p>;
  return <pre>{value}</pre>;
}

/* ---------------------------------------------------------------- any file */

const picture = (head: string, name: string) =>
  /^.PNG\r\n/s.test(head) || head.startsWith('GIF8') || /^.{6}(JFIF|Exif)/s.test(head) ||
  /^RIFF.{4}WEBP/s.test(head) || /\.(png|jpe?g|gif|webp|svg)$/i.test(name) || head.startsWith('<svg');

function dataUrl(url: string): Promise<string> {
  return api.blob(url).then((b) => new Promise((done, fail) => {
    const head = b.slice(0, 8).text();
    head.then((h) => {
      const type = h.includes('<') ? 'image/svg+xml' : h.includes('PNG') ? 'image/png'
        : h.startsWith('GIF') ? 'image/gif' : h.startsWith('RIFF') ? 'image/webp' : 'image/jpeg';
      const reader = new FileReader();
      reader.onload = () => done(String(reader.result).replace(/^data:[^;,]*/, `data:${type}`));
      reader.onerror = () => fail(reader.error);
      reader.readAsDataURL(b);
    });
  }));
}

function Picture({ url, name }: { url: string; name: string }) {
  const { value, error } = useLoaded(() => dataUrl(url), [url]);
  return <><Trouble error={error} />{value && <img src={value} alt={name} />}</>;
}

/* A page that a step made: in a frame without scripts and of no origin. */
function Page({ url, name }: { url: string; name: string }) {
  const { value, error } = useLoaded(() => api.ticketed(url), [url]);
  return <><Trouble error={error} />{value && <iframe class="frame" sandbox="" src={value} title={name} />}</>;
}

function json(text: string): any {
  try { return JSON.parse(text); } catch { return null; }
}

function table(text: string): string[][] | null {
  const rows = parseCsv(text.endsWith('\n') ? text : `${text}\n`, ROWS);
  const even = rows.slice(0, 5).every((r) => r.length === rows[0].length);
  return rows.length > 1 && rows[0].length > 1 && even ? rows : null;
}

function look(art: Artifact, name: string, at: Place, head: string): ComponentChildren {
  const url = api.artifactUrl(at.project, at.run, at.node, name), type = art.type ?? '';
  const file = `${name} ${art.uri}`, doc = head.startsWith('{') ? json(head) : null;
  if (/HTML/.test(type) || /\.html?$/i.test(file) || /^\s*<(!doctype html|html|body|script)/i.test(head))
    return <Page url={api.pageUrl(at.project, at.run, at.node, name)} name={name} />;
  if (Array.isArray(doc?.outputs) && doc.outputs.every((o: any) => o.type))
    return doc.outputs.map((o: any) => <Output output={o} />);
  if (Array.isArray(doc?.metrics))
    return <Table rows={[['metric', 'value']].concat(doc.metrics.map((m: any) => [m.name, String(m.numberValue)]))} />;
  if (art.size <= PICTURE_MAX && picture(head, file)) return <Picture url={url} name={name} />;
  if (head.slice(0, 8192).includes('\0') || head.slice(0, 8192).includes('\ufffd')) return null;
  if (/Markdown/.test(type) || /\.md$/i.test(file)) return <Markdown text={head} />;
  const rows = /json/i.test(file) || doc ? null : table(head);
  if (rows) return <Table rows={rows} />;
  return <pre>{doc ? JSON.stringify(doc, null, 2) : head}</pre>;
}

/* The address of its bytes that takes ranges. */
function mediaOf(art: Artifact, url: string) {
  const at = /^gs:\/\/([^/]+)\/(.+)$/.exec(art.uri);
  return at ? api.mediaUrl(at[1], at[2]) : url;
}

function Directory({ art, url }: { art: Artifact; url: string }) {
  const { value, error } = useLoaded(() => members(mediaOf(art, url), MEMBERS), [art.uri, art.size]);
  const files = (value?.found ?? []).filter((m) => !m.dir);
  return <><Trouble error={error} />
    {value && !files.length && <Empty>It is empty.</Empty>}
    {files.length > 0 && <table class="list members"><tbody>{files.map((m) =>
      <tr><td>{m.name.replace(/^\.\//, '')}</td><td class="num">{bytes(m.size)}</td></tr>)}</tbody></table>}
    {value?.more && <p class="faint">and more; the download has all of them</p>}</>;
}

function headOf(art: Artifact, url: string): Promise<string> {
  return art.dir || !art.size ? Promise.resolve('') : api.head(mediaOf(art, url), HEAD_BYTES);
}

const plain = (metadata: any) => Object.entries(metadata ?? {}).filter(([, v]) => typeof v !== 'object');

export function ArtifactView({ name, art, at }: { name: string; art: Artifact; at: Place }) {
  const url = api.artifactUrl(at.project, at.run, at.node, name);
  const { value, error } = useLoaded(() => headOf(art, url), [art.uri, art.size]);
  const scalars = plain(art.metadata);
  return <div class="artifact preview">
    <header class="bar"><h3>{name}</h3>
      <span class="faint">{(art.type ?? '').replace('system.', '')} {bytes(art.size ?? 0)}
      {art.dir ? ', a directory' : ''}</span>
      <Download of="link right" url={url} name={art.dir ? `${name}.tar` : name}>Download</Download></header>
    {scalars.length > 0 && <table class="list"><tbody>{scalars.map(([k, v]) =>
      <tr><td>{k}</td><td class="num">{String(v)}</td></tr>)}</tbody></table>}
    <Classifier metadata={art.metadata} />
    <Trouble error={error} />
    {value ? look(art, name, at, value) : null}
    {art.dir && <Directory art={art} url={url} />}
  </div>;
}
