/* The members of a tar as base/tar.h writes it, by its headers alone: what is between them is not
   fetched. */
import { api } from './api';

export interface Member { name: string; size: number; dir: boolean }

const BLOCK = 512, CHUNK = 64 * 1024;

const text = (b: Uint8Array, from: number, n: number) => {
  const part = b.subarray(from, from + n), end = part.indexOf(0);
  return new TextDecoder().decode(end < 0 ? part : part.subarray(0, end));
};

/* "LENGTH path=NAME\n": what an extended header says of the member after it. */
const longName = (body: string) => /(?:^|\n)\d+ path=([^\n]*)\n/.exec(body)?.[1];

/* At most `most` of them; `more`: there are others. */
export async function members(url: string, most: number): Promise<{ found: Member[]; more: boolean }> {
  const found: Member[] = [];
  let held = new Uint8Array(), start = 0, at = 0, said = '';
  const bytes = async (from: number, n: number) => {
    if (from < start || from + n > start + held.length) {
      held = await api.part(url, from, Math.max(n, CHUNK));
      start = from;
    }
    return held.subarray(from - start, from - start + n);
  };
  for (;;) {
    const head = await bytes(at, BLOCK);
    if (head.length < BLOCK || !head[0]) return { found, more: false };
    const kind = text(head, 156, 1);
    const size = head[124] & 0x80 ? head.subarray(128, 136).reduce((n, b) => n * 256 + b, 0)
      : parseInt(text(head, 124, 12), 8) || 0;
    if (kind === 'x') said = text(await bytes(at + BLOCK, Math.min(size, CHUNK)), 0, CHUNK);
    else {
      if (found.length === most) return { found, more: true };
      found.push({ name: longName(said) ?? text(head, 0, 100), size, dir: kind === '5' });
      said = '';
    }
    at += BLOCK * (1 + Math.ceil(size / BLOCK));
  }
}
