/* Pipelines that were uploaded, their versions; experiments. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api, Pipeline, Version } from './api';
import { draw } from './flow';
import { Graph } from './graph';
import { RunTable } from './runs';
import { clock, Empty, Rows, Trouble, typing, useLoaded } from './view';

const enc = encodeURIComponent;
const PACKAGES = '.yaml,.yml,.zip,.gz,.tgz,.json';
const link = (p: Pipeline) => `#/pipelines/${enc(p.project)}/${enc(p.id)}`;
const startLink = (project: string, id: string, version = '') =>
  `#/start/pipeline/${enc(project)}/${enc(id)}${version ? `/${enc(version)}` : ''}`;
const bare = (file: string) => file.replace(/\.(ya?ml|zip|json|tgz|tar\.gz|gz)$/i, '');

/* A button that takes a package, by a click or by a drop on the page. */
function Upload({ label, take }: { label: string; take: (file: File) => Promise<void> }) {
  const [said, setSaid] = useState('');
  const [bad, setBad] = useState(false);
  const upload = async (files: FileList | null | undefined) => {
    for (const file of files ?? []) {
      setBad(false);
      setSaid(`Uploading ${file.name}…`);
      try { await take(file); setSaid(''); }
      catch (e) { setBad(true); setSaid((e as Error).message); return; }
    }
  };
  const drop = useRef(upload);
  drop.current = upload;
  useEffect(() => {
    const over = (e: DragEvent) => e.preventDefault();
    const dropped = (e: DragEvent) => { e.preventDefault(); drop.current(e.dataTransfer?.files); };
    addEventListener('dragover', over);
    addEventListener('drop', dropped);
    return () => { removeEventListener('dragover', over); removeEventListener('drop', dropped); };
  }, []);
  return <><label class="button">{label}<input type="file" class="unseen" accept={PACKAGES}
      onChange={(e) => { upload(e.currentTarget.files); e.currentTarget.value = ''; }} /></label>
    {said && <p class={bad ? 'trouble full' : 'full'} role={bad ? 'alert' : 'status'}>{said}</p>}</>;
}

export function Pipelines() {
  const [text, setText] = useState('');
  const [said, setSaid] = useState('');
  const input = useRef<HTMLInputElement>(null);
  const { value, error, again } = useLoaded(() => api.pipelines({ text, limit: 1000 }), [text], 3000);
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (e.key === '/' && !typing(e)) { e.preventDefault(); input.current?.focus(); }
      if (e.key === 'Escape') input.current?.blur();
    };
    addEventListener('keydown', key);
    return () => removeEventListener('keydown', key);
  }, []);
  const remove = (p: Pipeline) => {
    if (confirm(`Delete ${p.name} and all its versions? Its runs stay.`))
      api.removePipeline(p.project, p.id).then(again, (e) => setSaid(e.message));
  };
  const items = value?.pipelines ?? [];
  return <main>
    <header class="bar"><h1>Pipelines</h1>
      <input ref={input} type="search" placeholder="Filter by name ( / )" value={text} aria-label="Filter by name"
             onInput={(e) => setText(e.currentTarget.value)} />
      <Upload label="Upload a pipeline" take={async (file) => {
        const p = await api.addPipeline(file, bare(file.name));
        location.hash = link(p);
      }} />
    </header>
    <Trouble error={error} />
    {said && <p class="trouble" role="alert">{said}</p>}
    {value && !items.length && <Empty>No pipelines{text ? ' like that' : ' yet'}. Drop a package on this page: what kfp
      compiles (.yaml, .zip, .tar.gz), or an Argo Workflow.</Empty>}
    {items.length > 0 && <table class="list">
      <thead><tr><th>Name</th><th class="wide">Description</th><th class="wide">Uploaded</th><th></th></tr></thead>
      <Rows>{items.map((p) => <tr key={p.id}>
        <td><a data-row href={link(p)}>{p.display || p.name}</a></td>
        <td class="wide faint">{p.description.slice(0, 100)}</td><td class="wide num">{clock(p.created)}</td>
        <td class="num"><a class="button" href={startLink(p.project, p.id)}>Create run</a>
          <button class="quiet" aria-label={`delete ${p.name}`} onClick={() => remove(p)}>×</button></td></tr>)}
      </Rows></table>}
  </main>;
}

function Versions({ pipeline, versions, shown, choose, changed }: { pipeline: Pipeline; versions: Version[];
  shown: string; choose: (id: string) => void; changed: () => void }) {
  const [said, setSaid] = useState('');
  const { project, id } = pipeline;
  const remove = (v: Version) => {
    if (confirm(`Delete version ${v.name}?`))
      api.removeVersion(project, id, v.id).then(changed, (e) => setSaid(e.message));
  };
  const prefer = (v: Version) => api.setDefault(project, id, v.id).then(changed, (e) => setSaid(e.message));
  return <section><h2>Versions</h2>
    {said && <p class="trouble" role="alert">{said}</p>}
    <table class="list"><tbody>{versions.map((v) => <tr key={v.id}>
      <td><button class="link" aria-pressed={v.id === shown} onClick={() => choose(v.id)}>{v.name}</button></td>
      <td>{v.id === pipeline.default_version ? <span class="state">default</span>
        : <button class="quiet" onClick={() => prefer(v)}>make default</button>}</td>
      <td class="wide">{v.dialect === 'ir' ? 'kfp 2' : 'Workflow'}</td><td class="wide num">{clock(v.created)}</td>
      <td class="num"><a class="button" href={startLink(project, id, v.id)}>Create run</a>
        <button class="quiet" aria-label={`delete version ${v.name}`} onClick={() => remove(v)}>×</button></td>
    </tr>)}</tbody></table></section>;
}

function Shape({ pipeline, version }: { pipeline: Pipeline; version: Version }) {
  const { value: flow, error } = useLoaded(
    () => api.versionFlow(pipeline.project, pipeline.id, version.id), [version.id]);
  const [turned, setTurned] = useState<Set<string>>(new Set());
  const [text, setText] = useState('');
  const drawing = useMemo(() => flow ? draw(flow, [], turned) : null, [flow, turned]);
  const choose = (i: { key: string; group?: string }) => {
    const next = new Set(turned);
    if (i.group && !next.delete(i.key)) next.add(i.key);
    setTurned(next);
  };
  return <section>
    <Trouble error={error} />
    {drawing && <Graph drawing={drawing} selected="" choose={choose} />}
    {version.inputs?.length > 0 && <><h2>Parameters</h2><table class="list values"><tbody>{version.inputs.map((i) =>
      <tr><td>{i.name}</td><td class="faint">{i.type.toLowerCase()}</td>
        <td><code>{typeof i.default === 'string' ? i.default : JSON.stringify(i.default) ?? ''}</code></td></tr>)}</tbody></table></>}
    <details onToggle={(e) => { if (e.currentTarget.open && !text)
      api.versionText(pipeline.project, pipeline.id, version.id).then(setText); }}>
      <summary><h2>Source</h2></summary><pre>{text}</pre></details>
  </section>;
}

export function OnePipeline({ project, id }: { project: string; id: string }) {
  const { value: p, error, again } = useLoaded(() => api.pipeline(project, id), [project, id]);
  const { value: list, again: more } = useLoaded(() => api.versions(project, id), [project, id]);
  const [chosen, setChosen] = useState('');
  if (error && !p) return <main><Trouble error={error} /></main>;
  if (!p || !list) return <main><Empty>…</Empty></main>;
  const changed = () => { again(); more(); };
  const shown = list.versions.find((v) => v.id === chosen) ?? list.versions.find((v) => v.id === p.default_version);
  return <main>
    <header class="bar"><h1><a href="#/pipelines">Pipelines</a> / {p.display || p.name}</h1>
      {shown && <a class="button" href={startLink(project, id, shown.id)}>Create run</a>}
      <Upload label="Upload a version" take={async (file) => {
        const stamp = new Date().toISOString().slice(0, 19).replace('T', ' ');
        const v = await api.addVersion(project, id, file, `${bare(file.name)} ${stamp}`);
        setChosen(v.id);
        changed();
      }} /></header>
    {p.description && <p class="faint">{p.description}</p>}
    {shown && <Shape key={shown.id} pipeline={p} version={shown} />}
    <Versions pipeline={p} versions={list.versions} shown={shown?.id ?? ''} choose={setChosen} changed={changed} />
  </main>;
}

/* ---------------------------------------------------------------- experiments */

export function Experiments() {
  const [archived, setArchived] = useState(false);
  const { value, error, again } = useLoaded(() => api.experiments({ limit: 1000, archived: archived ? 'true' : '' }),
                                            [archived], 3000);
  const [name, setName] = useState('');
  const [said, setSaid] = useState('');
  const make = (e: Event) => {
    e.preventDefault();
    api.makeExperiment(name).then(() => { setName(''); setSaid(''); again(); }, (x) => setSaid(x.message));
  };
  const items = value?.experiments ?? [];
  return <main>
    <header class="bar"><h1>Experiments</h1>
      <form onSubmit={make}><input placeholder="new experiment" aria-label="Name of a new experiment" value={name}
        onInput={(e) => setName(e.currentTarget.value)} /> <button disabled={!name}>Make</button></form>
      <label class="faint"><input type="checkbox" checked={archived}
        onChange={(e) => setArchived(e.currentTarget.checked)} /> archived</label>
    </header>
    <Trouble error={error} />
    {said && <p class="trouble" role="alert">{said}</p>}
    {value && !items.length && <Empty>{archived ? 'None was archived.' : 'No experiments yet.'}</Empty>}
    {items.length > 0 && <table class="list">
      <thead><tr><th>Name</th><th class="wide">Description</th><th>Last run</th></tr></thead>
      <Rows>{items.map((e) => <tr key={e.id}>
        <td><a data-row href={`#/experiments/${enc(e.project)}/${enc(e.id)}`}>{e.name}</a></td>
        <td class="wide faint">{e.description}</td><td class="num">{clock(e.last_run)}</td></tr>)}</Rows></table>}
  </main>;
}

export function OneExperiment({ project, id }: { project: string; id: string }) {
  const { value: e, error, again } = useLoaded(() => api.experiment(project, id), [project, id]);
  const [said, setSaid] = useState('');
  if (error && !e) return <main><Trouble error={error} /></main>;
  if (!e) return <main><Empty>…</Empty></main>;
  const archive = () => api.experimentDo(project, id, e.archived ? 'unarchive' : 'archive')
    .then(again, (x) => setSaid(x.message));
  const remove = () => {
    if (confirm(`Delete experiment ${e.name}? Its runs stay.`))
      api.removeExperiment(project, id).then(() => { location.hash = '#/experiments'; }, (x) => setSaid(x.message));
  };
  return <main>
    <header class="bar"><h1><a href="#/experiments">Experiments</a> / {e.name}</h1>
      <span class="right buttons"><button onClick={archive}>{e.archived ? 'Unarchive' : 'Archive'}</button>
        <button class="danger" onClick={remove}>Delete</button></span></header>
    {e.description && <p class="faint">{e.description}</p>}
    {said && <p class="trouble" role="alert">{said}</p>}
    <RunTable experiment={id} />
  </main>;
}
