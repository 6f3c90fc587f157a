// Echo each request as Go's net/http parsed it: method, target and body.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func echo(writer http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		writer.Header().Set("Connection", "close")
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	points := make([]rune, len(body))
	for index, value := range body {
		points[index] = rune(value)
	}
	response, _ := json.Marshal(map[string]string{
		"method": request.Method, "target": request.RequestURI, "body": string(points),
	})
	writer.Header().Set("Content-Type", "application/json")
	writer.Header().Set("Content-Length", fmt.Sprint(len(response)))
	writer.Write(response)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(os.Stderr, listener.Addr().(*net.TCPAddr).Port)
	http.Serve(listener, http.HandlerFunc(echo))
}
