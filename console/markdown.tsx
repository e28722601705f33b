/* A part of Markdown as elements, never as HTML: headings, paragraphs, lists, quotes, tables, code,
   emphasis, links to the web. What it does not know stays as it was written. */
import { ComponentChildren } from 'preact';

const INLINE = /(`[^`]+`)|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/;

function inline(text: string): ComponentChildren {
  const out: ComponentChildren[] = [];
  for (let m; (m = INLINE.exec(text)); text = text.slice(m.index + m[0].length)) {
    out.push(text.slice(0, m.index));
    if (m[1]) out.push(<code>{m[1].slice(1, -1)}</code>);
    else if (m[2]) out.push(<strong>{inline(m[2])}</strong>);
    else if (m[3]) out.push(<em>{inline(m[3])}</em>);
    else out.push(<a href={m[5]} target="_blank" rel="noopener noreferrer">{m[4]}</a>);
  }
  return [...out, text];
}

const cells = (line: string) => line.trim().replace(/^\||\|$/g, '').split('|').map((c) => c.trim());

function table(lines: string[]) {
  const [head, , ...rows] = lines.map(cells);
  return <div class="scroll"><table class="list"><thead><tr>{head.map((c) => <th>{inline(c)}</th>)}</tr></thead>
    <tbody>{rows.map((r) => <tr>{r.map((c) => <td>{inline(c)}</td>)}</tr>)}</tbody></table></div>;
}

const KINDS: [RegExp, (lines: string[]) => ComponentChildren][] = [
  [/^\s*[-*+] /, (l) => <ul>{l.map((x) => <li>{inline(x.replace(/^\s*[-*+] /, ''))}</li>)}</ul>],
  [/^\s*\d+[.)] /, (l) => <ol>{l.map((x) => <li>{inline(x.replace(/^\s*\d+[.)] /, ''))}</li>)}</ol>],
  [/^> ?/, (l) => <blockquote>{inline(l.map((x) => x.replace(/^> ?/, '')).join(' '))}</blockquote>],
  [/^\|/, (l) => l.length > 1 && /^[\s|:-]+$/.test(l[1]) ? table(l) : <p>{inline(l.join(' '))}</p>],
];

export function Markdown({ text }: { text: string }) {
  const out: ComponentChildren[] = [], lines = text.split(/\r?\n/);
  for (let i = 0; i < lines.length;) {
    const heading = /^(#{1,6}) +(.*?)#*$/.exec(lines[i]), kind = KINDS.find(([r]) => r.test(lines[i]));
    const begin = i++;
    if (/^```/.test(lines[begin])) {
      while (i < lines.length && !/^```/.test(lines[i])) i++;
      out.push(<pre>{lines.slice(begin + 1, i++).join('\n')}</pre>);
    } else if (heading) {
      out.push(heading[1].length === 1 ? <h3>{inline(heading[2])}</h3> : <h4>{inline(heading[2])}</h4>);
    } else if (/^(---+|\*\*\*+)\s*$/.test(lines[begin])) {
      out.push(<hr />);
    } else if (kind) {
      while (i < lines.length && kind[0].test(lines[i])) i++;
      out.push(kind[1](lines.slice(begin, i)));
    } else if (lines[begin].trim()) {
      while (i < lines.length && lines[i].trim() && !/^(#|```|>|\||\s*[-*+] |\s*\d+[.)] )/.test(lines[i])) i++;
      out.push(<p>{inline(lines.slice(begin, i).join(' '))}</p>);
    }
  }
  return <div class="markdown">{out}</div>;
}
