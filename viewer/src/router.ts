// Where the page is: the hash of the address, so that each place has a link.

import { useLayoutEffect, useState } from "preact/hooks";

export interface Place {
  path: string[];
  query: Record<string, string>;
}

export function placeOf(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  return {
    path: path.split("/").filter(Boolean),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

export function linkTo(path: (string | number)[], query: Record<string, string | number | undefined> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const parameters = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `#/${path.join("/")}${parameters ? `?${parameters}` : ""}`;
}

/** Go to a place. A place that replaces the current one makes no entry in the browser's history. */
export function go(link: string, replace = false): void {
  if (link === location.hash) return;
  if (replace) {
    history.replaceState(null, "", link);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = link;
  }
}

/** Change the query of the current place; undefined removes a key. */
export function change(query: Record<string, string | number | undefined>, replace = true): void {
  const place = placeOf(location.hash);
  go(linkTo(place.path, { ...place.query, ...query }), replace);
}

/** The number of a step as people see it, and as links have it: from 1, as lines are counted. */
export const numberOf = (step: { index: number }) => step.index + 1;

/** The index of the step that a link names; null if it names none. */
export function indexOf(number: string | undefined): number | null {
  return number !== undefined && /^[1-9][0-9]*$/.test(number) ? Number(number) - 1 : null;
}

export function usePlace(): Place {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  useLayoutEffect(() => {
    const update = () => setPlace(placeOf(location.hash));
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return place;
}
