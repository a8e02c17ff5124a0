// Builds envsdk/viewer/page.html: one file with the script and the style inside. The same sources give the same bytes.

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "envsdk", "viewer", "page.html");

/** What the page is made of, in the order of the names: a test compares its digest with the one in the page. */
function digest() {
  const files = ["build.mjs", "package-lock.json", ...readdirSync(join(here, "src")).map((name) => `src/${name}`)].sort();
  const hash = createHash("sha256");
  for (const name of files) {
    const data = readFileSync(join(here, name));
    hash.update(`${name} ${data.length}\n`).update(data);
  }
  return hash.digest("hex");
}

const result = await build({
  entryPoints: [join(here, "src", "main.tsx")],
  bundle: true,
  minify: true,
  write: false,
  format: "iife",
  target: "es2022",
  charset: "ascii",
  legalComments: "none",
  jsx: "automatic",
  jsxImportSource: "preact",
  define: { "process.env.NODE_ENV": '"production"' },
  outdir: "out",
});
const textOf = (end) => result.outputFiles.find((file) => file.path.endsWith(end)).text.trim();
const script = textOf(".js").replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
const style = textOf(".css");
const hashOf = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
const policy = [
  "default-src 'none'",
  `script-src ${hashOf(script)}`,
  `style-src ${hashOf(style)}`,
  "connect-src 'self'",
  "img-src 'self' data:",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");
const page = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="sources" content="${digest()}">
<title>envsdk</title>
<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M3 2v12M3 6h5v6M8 9h5v5' fill='none' stroke='%233b7dd8' stroke-width='2'/%3E%3C/svg%3E">
<style>${style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page needs JavaScript.</noscript>
<!--data-->
<script>${script}</script>
</body>
</html>
`;
writeFileSync(out, page);
console.log(`${out}: ${(page.length / 1024).toFixed(1)} KB`);
