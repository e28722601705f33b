/* What is drawn of a run: its flow document, unrolled as far as it is unfolded, with the nodes that
   there are by now. Not a line of this knows how it will look. */
import { Flow, Node, Task, Template } from './api';

export interface Item {
  key: string;                  // the node's name, also before there is a node
  label: string;
  phase: string;                // '' : not begun
  node?: Node;
  template: string;
  when?: string;
  group?: 'loop' | 'retry' | 'dag';
  folded?: boolean;
  inner?: number;               // how many a group holds, and how many of them have ended
  done?: number;
}

export interface Drawing { items: Item[]; edges: [string, string][]; cut: number }

const ENDED = ['Succeeded', 'Failed', 'Error', 'Skipped', 'Omitted'];
const SHOWN_MAX = 1500;         // boxes; more than that nobody reads
const OPEN_MAX = 300;           // a dag inside a dag that is larger starts folded
const JOIN_MIN = 64;            // edges between two sets that are drawn through one point

interface Part { first: string[]; last: string[] }

interface Work {
  flow: Flow;
  kids: Map<string, Node[]>;
  turned: Set<string>;          // groups that the user folded or unfolded
  out: Drawing;
}

const ended = (n: Node) => ENDED.includes(n.phase);

/* Nodes of the tasks of a dag, whatever groups of steps are between. */
function byTask(w: Work, dag?: Node): Map<string, Node> {
  const found = new Map<string, Node>();
  for (const n of dag ? w.kids.get(dag.id) ?? [] : []) {
    const of = n.kind === 'StepGroup' ? w.kids.get(n.id) ?? [] : [n];
    for (const one of of) found.set(one.task, one);
  }
  return found;
}

function stages(tasks: Task[]): Map<string, number> {
  const at = new Map<string, number>();
  for (const t of tasks) at.set(t.name, Math.max(-1, ...(t.after ?? []).map((a) => at.get(a) ?? -1)) + 1);
  return at;
}

function join(w: Work, from: string[], to: string[]) {
  if (from.length * to.length < JOIN_MIN || from.length < 2 || to.length < 2) {
    for (const a of from) for (const b of to) w.out.edges.push([a, b]);
    return;
  }
  const key = `join:${from[0]}:${to[0]}`;
  w.out.items.push({ key, label: '', phase: '', template: '' });
  for (const a of from) w.out.edges.push([a, key]);
  for (const b of to) w.out.edges.push([key, b]);
}

function add(w: Work, item: Item): Part {
  if (w.out.items.length >= SHOWN_MAX) {
    w.out.cut++;
    return { first: [], last: [] };
  }
  w.out.items.push(item);
  return { first: [item.key], last: [item.key] };
}

/* A box that can be opened: what is inside follows it then. */
function group(w: Work, item: Item, opens: boolean, inside: () => Part[]): Part {
  item.folded = w.turned.has(item.key) ? opens : !opens;
  const head = add(w, item);
  if (item.folded || !head.first.length) return head;
  const parts = inside();
  join(w, head.last, parts.flatMap((p) => p.first));
  const last = parts.flatMap((p) => p.last);
  return { first: head.first, last: last.length ? last : head.last };
}

function dag(w: Work, t: Template, key: string, node: Node | undefined, above: string[]): Part {
  const tasks = t.dag!.tasks, nodes = byTask(w, node), parts = new Map<string, Part>();
  const steps = t.dag!.style === 'steps' ? stages(tasks) : null;
  const followed = new Set(tasks.flatMap((task) => task.after ?? []));
  for (const task of tasks) {
    const name = `${key}${steps ? `[${steps.get(task.name)}]` : ''}.${task.name}`;
    parts.set(task.name, one(w, task, name, nodes.get(task.name), above));
  }
  for (const task of tasks)
    if (task.after?.length)
      join(w, task.after.flatMap((a) => parts.get(a)?.last ?? []), parts.get(task.name)!.first);
  const some = (of: Task[], side: 'first' | 'last') => of.flatMap((x) => parts.get(x.name)![side]);
  return { first: some(tasks.filter((x) => !x.after?.length), 'first'),
           last: some(tasks.filter((x) => !followed.has(x.name)), 'last') };
}

function one(w: Work, task: Task, key: string, node: Node | undefined, above: string[]): Part {
  const label = task.display || node?.display || task.name;
  if (!task.loop || node?.kind === 'Skipped')
    return body(w, { key, label, phase: node?.phase ?? '', node, template: task.template, when: task.when }, above);
  const turns = node ? w.kids.get(node.id) ?? [] : [];
  return group(w, { key, label, phase: node?.phase ?? '', node, template: task.template, when: task.when,
                    group: 'loop', inner: turns.length, done: turns.filter(ended).length }, false,
    () => !node ? [body(w, { key: `${key}()`, label: `each of ${label}`, phase: '', template: task.template }, above)]
      : turns.map((n) => body(w, { key: n.name, label: n.display, phase: n.phase, node: n,
                                     template: task.template }, above)));
}

/* A template that was entered, or will be: attempts, a dag, or one step. */
function body(w: Work, item: Item, above: string[]): Part {
  const t = w.flow.templates[item.template], tries = item.node ? w.kids.get(item.node.id) ?? [] : [];
  if (item.node?.kind === 'Skipped' || !t) return add(w, item);
  if (item.node?.kind === 'Retry' && tries.length > 1)
    return group(w, { ...item, group: 'retry', inner: tries.length, done: tries.filter(ended).length }, false,
      () => tries.map((n) => inner(w, t, { ...item, key: n.name, label: n.display, phase: n.phase, node: n }, above)));
  if (item.node?.kind === 'Retry' && tries.length === 1 && !t.dag)
    return add(w, { ...item, node: tries[0] });
  return inner(w, t, item.node?.kind === 'Retry' ? { ...item, node: tries[0] ?? item.node } : item, above);
}

function inner(w: Work, t: Template, item: Item, above: string[]): Part {
  if (!t.dag || (!item.node && above.includes(item.template))) return add(w, item);
  const within = byTask(w, item.node);
  return group(w, { ...item, group: 'dag', inner: t.dag.tasks.length,
                    done: [...within.values()].filter(ended).length },
    t.dag.tasks.length <= OPEN_MAX,
    () => [dag(w, t, item.key, item.node, above.concat(item.template))]);
}

export function draw(flow: Flow, nodes: Node[], turned: Set<string>): Drawing {
  const kids = new Map<string, Node[]>();
  for (const n of nodes) {
    if (!n.parent) continue;
    if (!kids.has(n.parent)) kids.set(n.parent, []);
    kids.get(n.parent)!.push(n);
  }
  const roots = nodes.filter((n) => !n.parent), exit = roots.find((n) => n.name.endsWith('.onExit'));
  const root = roots.find((n) => n !== exit), t = flow.templates[flow.entry];
  const w: Work = { flow, kids, turned, out: { items: [], edges: [], cut: 0 } };
  const main = t?.dag && root?.kind !== 'Retry' ? dag(w, t, root?.name ?? flow.entry, root, [flow.entry])
    : body(w, { key: root?.name ?? flow.entry, label: root?.display ?? flow.entry, phase: root?.phase ?? '',
                node: root, template: flow.entry }, []);
  if (flow.exit) {
    const last = body(w, { key: exit?.name ?? `${flow.entry}.onExit`, label: 'on exit', node: exit,
                           phase: exit?.phase ?? '', template: flow.exit }, [flow.exit]);
    join(w, main.last, last.first);
  }
  return w.out;
}

/* Programs that ran, for the time line. */
export const leaves = (nodes: Node[]) =>
  nodes.filter((n) => n.started && (n.kind === 'Pod' || n.kind === 'Suspend'));
